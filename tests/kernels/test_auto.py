"""kernel='auto': its choice, the logged reasons, and kernels that it rejects."""

import collections
import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import pytest

import tfm.kernels.auto
import tfm.kernels.flash
from tests.kernels.on_mesh import abstract_mesh
from tests.kernels.test_chunked import arrays, attention_inputs, kernel
from tests.paths import ROOT
from tfm.kernels.dense import Dense
from tfm.kernels.protocol import Kernel
from tfm.training.progress_line import OnceFilter


@pytest.fixture
def log(caplog):
  caplog.handler.addFilter(once := OnceFilter())
  with caplog.at_level(logging.INFO, 'tfm.kernels.auto'):
    yield caplog
  caplog.handler.removeFilter(once)


def test_chooses_dense_for_short_rows_and_chunked_for_long_ones(log):
  for T in (32, 512):
    jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **attention_inputs(T=T)), *arrays(T))
  first, second = log.messages
  assert first == 'kernel: auto chose dense on cpu, not chunked: 32 queries and 32 keys are few'
  assert 'auto chose chunked on cpu' in second


def test_the_choice_is_logged_once(log):
  for T in (8, 8, 16):
    jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **attention_inputs(T=T)), *arrays(T))
  assert len(log.messages) == 1


def test_the_details_are_logged_for_each_shape(log):
  with log.at_level(logging.DEBUG, 'tfm.kernels.auto'):
    for T in (8, 8, 16):
      jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **attention_inputs(T=T)), *arrays(T))
  [details] = [message for message in log.messages if '16 queries and 16 keys are few' in message]
  assert details.startswith('kernels before dense: ') and len(log.messages) == 3


def test_skips_an_unsupported_kernel_that_by_name_is_an_error(log, monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Limited(Kernel):
    def unsupported_reason(self, q, k, v, inputs):
      return 'it supports no soft cap' if inputs.soft_cap else None

    def attend(self, q, k, v, inputs):
      return jnp.zeros(q.shape), None

  monkeypatch.setattr(tfm.kernels.auto, 'ORDER', ('limited', 'dense'))
  monkeypatch.setattr(tfm.kernels.auto, 'load_kernel', {'limited': Limited(), 'dense': Dense()}.__getitem__)
  assert not kernel('auto')(*arrays(), **attention_inputs()).any()
  assert kernel('auto')(*arrays(), **attention_inputs(soft_cap=3.0)).any()
  assert 'not limited: it supports no soft cap' in log.messages[-1]
  with pytest.raises(ValueError, match="kernel='limited' cannot be used: it supports no soft cap"):
    Limited()(*arrays(), **attention_inputs(soft_cap=3.0))


@pytest.mark.parametrize('platform, expected', [('tpu', 'splash'), ('gpu', 'cudnn'), ('cpu', 'chunked')])
def test_prefers_the_kernel_of_the_platform(monkeypatch, log, platform, expected):
  class Reached(Exception):
    pass

  def attend(self, *args):
    raise Reached

  kind = type(tfm.kernels.auto.load_kernel(expected))
  monkeypatch.setattr(jax, 'default_backend', lambda: platform)
  monkeypatch.setattr(kind, 'attend', attend)
  # The compute capability of a GPU that is not attached is unknown.
  monkeypatch.setattr(
    tfm.kernels.auto.load_kernel('cudnn').__class__, 'unavailable_reason', Kernel.unavailable_reason
  )
  with pytest.raises(Reached):
    kernel('auto')(*(x.astype(jnp.bfloat16) for x in arrays(512)), **attention_inputs(T=512))
  assert f'auto chose {expected} on {platform}' in log.messages[-1]


def test_the_order_is_that_of_the_measured_times():
  """The first that was measured is the fastest on the H200 of docs/results/h200.jsonl, at every length."""
  times = collections.defaultdict(dict)
  for line in (ROOT / 'docs/results/h200.jsonl').read_text(encoding='utf-8').splitlines():
    entry = json.loads(line)
    function, fields = json.loads(entry['key'])
    if function == 'attention:kernel' and fields['kernel'] in tfm.kernels.auto.ORDER:
      times[fields['variant'], fields['length']][fields['kernel']] = entry['found']['both_ms']
  assert {length for _, length in times} == {512, 2048, 8192}
  for found in times.values():
    assert min(found, key=found.get) == min(found, key=tfm.kernels.auto.ORDER.index)
  assert tfm.kernels.flash.SHORTEST == min(length for _, length in times)


@pytest.mark.parametrize(
  'kind, fields, expected',
  [
    ('NVIDIA H200', dict(T=512, soft_cap=5.0), 'flash'),
    ('NVIDIA H200', dict(T=500, soft_cap=5.0), 'chunked'),
    ('NVIDIA H200', dict(T=400_000, soft_cap=5.0), 'chunked'),
    ('NVIDIA H200', dict(T=512, C=256), 'chunked'),
    ('NVIDIA H200', dict(T=512, dtype='float32'), 'chunked'),
    ('NVIDIA L4', dict(T=512, soft_cap=5.0), 'chunked'),
    ('TPU v5 lite', dict(T=512, soft_cap=5.0), 'splash'),
  ],
)
def test_the_choice_on_devices_that_are_not_attached(log, kind, fields, expected):
  fields = dict(dtype='bfloat16', C=8) | fields
  platform = 'tpu' if kind.startswith('TPU') else 'gpu'
  T, C = fields['T'], fields['C']
  qkv = [jax.ShapeDtypeStruct((2, T, 2, C), fields['dtype'])] * 3
  inputs = attention_inputs(T=T) | {name: fields[name] for name in ('soft_cap',) if name in fields}
  with jax.sharding.use_abstract_mesh(abstract_mesh(kind, platform)):
    jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **inputs), *qkv)
  assert f'auto chose {expected} on {platform}' in log.messages[-1]


def test_one_short_line_has_the_nearest_kernel_and_the_details_have_all(log):
  with log.at_level(logging.DEBUG, 'tfm.kernels.auto'):
    kernel('auto')(*arrays(), **attention_inputs())
  line, details = log.messages
  assert line.startswith('kernel: auto chose dense on cpu, not chunked: ') and len(line) <= 80
  assert 'splash: it runs on tpu, not on cpu' in details and 'cudnn: it runs on gpu, not on cpu' in details
