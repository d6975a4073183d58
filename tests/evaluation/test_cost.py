"""Costs: cache bytes by hand, the rates' arithmetic by a clock that is set; no time is judged here."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tfm.conformance import tiny
from tfm.evaluation import cost
from tfm.evaluation.cost import CacheBytes


# Of a cache that keeps tokens: position, segment and prefix of each, int32; where the next token goes.
PLACE, INDEX = 3 * 4, 4


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
@pytest.mark.parametrize('dtype, size', [('float32', 4), ('bfloat16', 2)])
def test_keys_and_values_by_hand(kv_heads, dtype, size):
  model = tiny.decoder(layers=3, width=24, heads=4, kv_heads=kv_heads, head_width=6, dtype=dtype)
  assert cost.count_cache_bytes(model) == CacheBytes(3 * (2 * kv_heads * 6 * size + PLACE), 3 * INDEX)


def test_a_window_keeps_every_token():
  """The mask hides them; they are there."""
  whole = cost.count_cache_bytes(tiny.decoder())
  assert cost.count_cache_bytes(tiny.decoder(mask='causal & window(2)')) == whole


def test_latent_attention_keeps_one_latent():
  model = tiny.decoder(mixer='latent(rank=6, rope_width=4)', kv_heads=4, layers=2)
  assert cost.count_cache_bytes(model) == CacheBytes(2 * ((6 + 4) * 4 + PLACE), 2 * INDEX)


@pytest.mark.parametrize('mixer', ['recurrent', 'linear', 'mamba', 'mamba2', 'gated_delta', 'convolution'])
def test_what_keeps_no_tokens_costs_nothing_for_each(mixer):
  found = cost.count_cache_bytes(tiny.decoder(mixer=mixer, position='none'))
  assert found.per_token == 0 and found.constant > 0


def test_the_state_of_an_lstm_by_hand():
  """Two vectors of the model's width, and the segment that they belong to."""
  found = cost.count_cache_bytes(tiny.decoder(mixer='recurrent("lstm")', position='none', layers=2, width=16))
  assert found.constant == 2 * (2 * 16 * 4 + 4)


def test_a_pattern_adds_up():
  mixed = tiny.decoder(
    layers=3,
    pattern=('a', 'b'),
    blocks=dict(a=dict(), b=dict(mixer='recurrent', position='none', kv_heads=4)),
  )
  full, recurrent = (
    cost.count_cache_bytes(tiny.decoder(layers=1, **b))
    for b in (dict(), dict(mixer='recurrent', position='none'))
  )
  assert cost.count_cache_bytes(mixed) == CacheBytes(
    2 * full.per_token, 2 * full.constant + recurrent.constant
  )


def test_turns_are_shared(monkeypatch):
  clock = iter(
    [0, 9, 9, 10] + [0, 1, 1, 3] + [0, 5, 5, 15] + [0, 1, 1, 3]
  )  # the first does not count, the third is disturbed
  monkeypatch.setattr(cost.time, 'perf_counter', lambda: next(clock))
  assert cost.time_interleaved((lambda: 0, lambda: 0), rounds=3) == [1, 2]


def test_a_cache_that_grows_unevenly_is_refused():
  class Halved:
    @staticmethod
    def init_caches(batch, length):
      return jnp.zeros((batch, length // 2 if length > 100 else length))

  with pytest.raises(ValueError, match='which is not linear in the length'):
    cost.count_cache_bytes(Halved)


@pytest.fixture
def clock(monkeypatch):
  """Every look at the clock is a quarter of a second after the one before."""
  ticks = iter(range(10**6))
  monkeypatch.setattr(cost.time, 'perf_counter', lambda: next(ticks) / 4)


def test_decoding_counts_the_tokens_that_are_written(clock, monkeypatch):
  model = tiny.decoder(layers=1)
  written, decode = [], cost.loop.decode_chunk

  def counted(*args):
    state, result, count = decode(*args)
    written.append((result.shape, int(count), int(args[2].positions[0])))
    return state, result, count

  monkeypatch.setattr(cost.loop, 'decode_chunk', counted)
  rate = cost.measure_decoding_rate(model, tiny.parameters(model), rows=3, context=5, tokens=4, rounds=2)
  # 4 tokens of each of 3 rows in a quarter of a second, whatever the rows are padded to; the first round
  # warms up.
  assert rate == 3 * 4 * 4
  assert len(written) == 3 and {(shape[1], count, first) for shape, count, first in written} == {(4, 4, 4)}


def test_decoding_refuses_more_than_the_positions_tell():
  model = tiny.decoder(12, position='learned', layers=1)
  with pytest.raises(ValueError, match='Learned has 12'):
    cost.measure_decoding_rate(model, None, context=10, tokens=4)
  with pytest.raises(ValueError, match='rows=0 and rounds=5 must be at least 1'):
    cost.measure_decoding_rate(model, None, rows=0)


def test_a_step_is_timed_and_its_memory_reported(clock):
  """Each step goes on from the last; what is donated is not counted twice."""
  n = 256

  @dataclasses.dataclass
  class Seen:
    steps: int = 0

  seen = Seen()

  def step(state, batch):
    jax.debug.callback(lambda: setattr(seen, 'steps', seen.steps + 1))
    return state + batch @ batch, dict(loss=state[0, 0])

  state, batch = jnp.zeros((n, n)), jnp.ones((n, n))
  found = cost.measure_step_cost(jax.jit(step, donate_argnums=0), state, batch, rounds=4)
  jax.effects_barrier()
  assert found.seconds == 0.25 and seen.steps == 5
  # The state, whose place the next one takes, the batch, the product before it is added, and little else.
  matrix = n * n * 4
  assert matrix <= found.temporary_bytes < 1.01 * matrix
  assert 3 * matrix <= found.peak_bytes < 3.01 * matrix
