"""The choice of a kernel, its reason, and refusals."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import pytest

import tfm.kernels.auto
from tests.kernels.test_chunked import arrays, attention_inputs, kernel
from tfm.kernels.dense import Dense
from tfm.kernels.protocol import Kernel


@pytest.fixture
def said(caplog):
  tfm.kernels.auto._log_once.cache_clear()
  with caplog.at_level(logging.INFO, 'tfm.kernels.auto'):
    yield caplog


def test_short_rows_are_dense_and_long_ones_chunked(said):
  for T in (32, 512):
    jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **attention_inputs(T=T)), *arrays(T))
  first, second = said.messages
  assert (
    'auto takes dense on cpu' in first and 'chunked: queries and keys are no more than one block' in first
  )
  assert 'auto takes chunked on cpu' in second


def test_the_choice_is_logged_once(said):
  for _ in range(3):
    jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **attention_inputs()), *arrays())
  assert len(said.messages) == 1


def test_what_cannot_serve_is_passed_over_and_named_it_is_an_error(said, monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Proud(Kernel):
    def unsupported_reason(self, q, k, v, inputs):
      return 'it takes no soft cap' if inputs.soft_cap else None

    def attend(self, q, k, v, inputs):
      return jnp.zeros(q.shape), None

  monkeypatch.setattr(tfm.kernels.auto, 'ORDER', ('proud', 'dense'))
  monkeypatch.setattr(tfm.kernels.auto, 'load_kernel', {'proud': Proud(), 'dense': Dense()}.__getitem__)
  assert not kernel('auto')(*arrays(), **attention_inputs()).any()
  assert kernel('auto')(*arrays(), **attention_inputs(soft_cap=3.0)).any()
  assert 'not proud: it takes no soft cap' in said.messages[-1]
  with pytest.raises(ValueError, match="kernel='proud' cannot serve: it takes no soft cap"):
    Proud()(*arrays(), **attention_inputs(soft_cap=3.0))


@pytest.mark.parametrize('platform, taken', [('tpu', 'splash'), ('gpu', 'cudnn'), ('cpu', 'chunked')])
def test_the_platforms_own_kernel_comes_first(monkeypatch, said, platform, taken):
  class Reached(Exception):
    pass

  def attend(self, *args):
    raise Reached

  kind = type(tfm.kernels.auto.load_kernel(taken))
  monkeypatch.setattr(jax, 'default_backend', lambda: platform)
  monkeypatch.setattr(kind, 'attend', attend)
  # Of a GPU that is not here, its age cannot be asked.
  monkeypatch.setattr(
    tfm.kernels.auto.load_kernel('cudnn').__class__, 'unavailable_reason', Kernel.unavailable_reason
  )
  with pytest.raises(Reached):
    kernel('auto')(*(x.astype(jnp.bfloat16) for x in arrays(512)), **attention_inputs(T=512))
  assert f'auto takes {taken} on {platform}' in said.messages[-1]


def test_another_platforms_kernel_is_passed_over_with_its_reason(said):
  kernel('auto')(*arrays(), **attention_inputs())
  assert 'not splash: it runs on tpu, and this is a cpu' in said.messages[-1]
  assert 'not cudnn: it runs on gpu, and this is a cpu' in said.messages[-1]
