"""The cache of keys and values in int8."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.decoding.beam import BeamSearch, search
from tfm.decoding.loop import generate_all
from tfm.decoding.unroll_layers import unroll_layers
from tfm.layers.cache_type import Rounded, active_cache_type
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Context
from tfm.models.memory import total_bytes
from tfm.objectives.causal_lm import CausalLM
from tfm.runs.built_model import build


pytestmark = pytest.mark.slow
SIZES = dict(layers=2, width=64, heads=4)
MODELS = {
  'softmax': dict(kv_heads=2),
  'latent': dict(mixer='latent(rank=24, rope_width=8)'),
  'shared keys': dict(blocks=dict(own=dict(), shared=dict(own_keys=False)), pattern=('own', 'shared')),
  'hybrid': dict(blocks=dict(a=dict(), b=dict(mixer='gated_delta')), pattern=('a', 'b'), position='none'),
}


def make(model, **decoding):
  built = build(dict(model=SIZES | model, data=dict(length=32), decoding=decoding), vocab=61)
  params, key = built.init(jax.random.key(0)), jax.random.key(1)
  params = jax.tree.map(lambda x: 2 * x if x.ndim > 1 else x + 0.1 * jax.random.normal(key, x.shape), params)
  return unroll_layers(built.model, params)


def test_a_vector_has_one_scale_and_zeros_remain_zeros():
  x = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(np.float32)
  x[0, 0, 0] = 0
  rounded = Rounded.of(jnp.asarray(x))
  scale = np.abs(x).max(-1, keepdims=True) / 127
  expected = np.round(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0))
  assert rounded.integers.dtype == jnp.int8 and np.abs(rounded.integers).max() == 127
  np.testing.assert_array_equal(rounded.integers, expected)
  assert (np.abs(rounded.restore(jnp.float32) - x) <= scale / 2 + 1e-6).all()
  np.testing.assert_array_equal(rounded.restore(jnp.float32)[0, 0, 0], 0)


def test_only_the_arrays_that_may_be_are_rounded_as_they_are_written():
  with active_cache_type('int8'):
    cache = TokenCache.empty(
      2, 8, rounded=('k', 'v'), k=(2, 4, jnp.bfloat16), v=(2, 6, jnp.bfloat16), sums=(1, 1, jnp.float32)
    )
  draw = np.random.default_rng(0)
  new = {
    name: draw.standard_normal((2, 5, *shape))
    for name, shape in (('k', (2, 4)), ('v', (2, 6)), ('sums', (1, 1)))
  }
  pieces = cache
  for piece in slice(0, 2), slice(2, 5):
    context = Context(jnp.zeros((2, 5), int)[:, piece], jnp.ones((2, 5), int)[:, piece])
    pieces = pieces.append(
      context, **{name: jnp.asarray(x[:, piece], jnp.float32) for name, x in new.items()}
    )
  assert pieces.arrays['k'].integers.dtype == jnp.int8 and pieces.arrays['sums'].dtype == jnp.float32
  for name, x in new.items():
    assert pieces[name].dtype == (jnp.float32 if name == 'sums' else jnp.bfloat16)
    bound = np.abs(x).max(-1, keepdims=True) * (0 if name == 'sums' else 0.5 / 127 + 2**-8)
    assert (np.abs(pieces[name][:, :5] - x) <= bound + 1e-6).all()
    assert not pieces[name][:, 5:].any()


@pytest.mark.parametrize('name', MODELS)
def test_a_model_reads_rounded_keys_and_values(name):
  tokens = np.random.default_rng(0).integers(0, 61, (2, 12)).astype(np.int32)
  (model, params), (full, _) = make(MODELS[name], cache='int8'), make(MODELS[name])
  caches, plain = (one.init_caches(2, 16) for one in (model, full))
  # Four bytes become one, and each vector of 8 to 32 channels has a scale.
  assert total_bytes(caches) < {'hybrid': 0.95, 'softmax': 0.45}.get(name, 0.5) * total_bytes(plain)
  outputs, read = [], jax.jit(lambda *arguments: model.apply({'params': params}, *arguments))
  for piece in np.split(np.arange(12), [4, 8]):
    context = Context(jnp.asarray(np.tile(piece, (2, 1))), jnp.ones((2, len(piece)), int))
    logits, caches = read(tokens[:, piece], context, caches)
    outputs.append(logits)
  expected = np.asarray(jax.jit(lambda: full.apply({'params': params}, *full.arguments(tokens))[0])())
  error = np.sqrt(np.mean((np.concatenate(outputs, 1) - expected) ** 2) / np.mean(expected**2))
  assert 1e-4 < error < 0.03, error


def test_evaluation_reads_the_rounded_cache_and_training_does_not():
  batch = dict(
    inputs=np.random.default_rng(0).integers(0, 61, (2, 12)).astype(np.int32),
    targets=np.random.default_rng(1).integers(0, 61, (2, 12)).astype(np.int32),
    positions=np.tile(np.arange(12, dtype=np.int32), (2, 1)),
    segments=np.ones((2, 12), np.int32),
  )
  losses = {}
  for cache in 'full', 'int8':
    model, params = make({}, cache=cache)
    for key in None, jax.random.key(0):
      predict = CausalLM(chunk=0, layout='packed', recurrence=0).predict
      features = jax.jit(lambda: predict(model, params, batch, None, key).features)()
      losses[cache, key is None] = np.asarray(features)
  np.testing.assert_array_equal(losses['int8', False], losses['full', False])
  difference = np.abs(losses['int8', True] - losses['full', True])
  assert 1e-4 < difference.max() < 0.1 * np.abs(losses['full', True]).max()


def test_rows_and_beams_are_decoded_with_rounded_caches():
  model, params = make(MODELS['softmax'], cache='int8')
  prompts = [np.array(prompt) for prompt in ([1, 2, 3, 4, 5], [7])]
  together = generate_all(model, params, prompts, max_tokens=20, eos=None)
  alone = [generate_all(model, params, [prompt], max_tokens=20, eos=None)[0] for prompt in prompts]
  np.testing.assert_array_equal(together, alone)
  assert len(np.unique(together)) > 4
  # A tree of hypotheses that is pruned every few steps, and one that is not.
  pruned, whole = (
    search(model, params, prompts, settings=BeamSearch(3), max_tokens=20, eos=0, room=room)
    for room in (5, 31)
  )
  for a, b in zip(sum(pruned, []), sum(whole, []), strict=True):
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_allclose(a.score, b.score, rtol=1e-5)


def test_what_caches_no_keys_is_refused():
  with pytest.raises(
    ValueError, match=r"cache='int8' rounds keys and values, and .*mixer='mamba' caches none"
  ):
    make(dict(mixer='mamba', position='none'), cache='int8')
  with pytest.raises(ValueError, match="'int4' is unknown"):
    make({}, cache='int4')
