"""The choice of a kernel, its reason, and refusals."""

import dataclasses
import logging

import jax.numpy as jnp
import pytest

import tfm.kernels.auto
from kernels.test_chunked import arrays, asked, kernel
from tfm.kernels.dense import Dense
from tfm.kernels.protocol import Kernel


@pytest.fixture
def said(caplog):
  tfm.kernels.auto._say.cache_clear()
  with caplog.at_level(logging.INFO, 'tfm.kernels.auto'):
    yield caplog


def test_short_rows_are_dense_and_long_ones_chunked(said):
  for T in (32, 512):
    kernel('auto')(*arrays(T), **asked(T=T))
  first, second = said.messages
  assert 'auto takes dense on cpu' in first and 'chunked: 32 queries and 32 keys are one block' in first
  assert 'auto takes chunked on cpu' in second


def test_the_choice_is_logged_once(said):
  for _ in range(3):
    kernel('auto')(*arrays(), **asked())
  assert len(said.messages) == 1


def test_what_cannot_serve_is_passed_over_and_named_it_is_an_error(said, monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Proud(Kernel):
    def refusal(self, q, k, v, asked):
      return 'it takes no soft cap' if asked.soft_cap else None
    def attend(self, q, k, v, asked):
      return jnp.zeros(q.shape), None

  monkeypatch.setattr(tfm.kernels.auto, 'ORDER', ('proud', 'dense'))
  monkeypatch.setattr(tfm.kernels.auto, 'named', {'proud': Proud(), 'dense': Dense()}.__getitem__)
  assert not kernel('auto')(*arrays(), **asked()).any()
  assert kernel('auto')(*arrays(), **asked(soft_cap=3.0)).any()
  assert 'not proud: it takes no soft cap' in said.messages[-1]
  with pytest.raises(ValueError, match="kernel='proud' cannot serve: it takes no soft cap"):
    Proud()(*arrays(), **asked(soft_cap=3.0))
