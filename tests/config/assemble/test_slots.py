"""Single slots in other programs: equal to Flax's and JAX's own attention, and refused where they must be."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm
from tfm.mixers.protocol import Context


B, T, D, H, C = 2, 9, 12, 3, 4
X = jax.random.normal(jax.random.key(0), (B, T, D))
SIZES = dict(width=D, heads=H, length=T)


def init(module, *inputs):
  return nn.unbox(jax.jit(module.init)(jax.random.key(1), *inputs))


def apply(module, variables, *inputs, **settings):
  return jax.jit(functools.partial(module.apply, **settings))(variables, *inputs)


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('mask', ['full', 'causal'])
def test_softmax_is_the_attention_of_flax(mask, bias):
  layer = tfm.build_mixer('softmax', **SIZES, position='none', mask=mask, bias=bias)
  theirs = nn.MultiHeadDotProductAttention(num_heads=H, use_bias=bias)
  variables = init(theirs, X, X)
  names = dict(q='query', k='key', v='value', out='out')
  mixer = {ours: variables['params'][name] for ours, name in names.items()}
  seen = nn.make_causal_mask(jnp.ones((B, T))) if mask == 'causal' else None
  np.testing.assert_allclose(
    apply(layer, {'params': dict(mixer=mixer)}, X), apply(theirs, variables, X, mask=seen), atol=1e-5
  )


def test_a_flax_initializer_is_that_of_a_dense_layer():
  """The matrix D × H·C has orthogonal rows, and H·C × D of the output orthogonal columns."""
  make = lambda **more: tfm.build_mixer('softmax', **SIZES, head_width=6, **more)
  params = init(make(initializer=nn.initializers.orthogonal()), X)['params']['mixer']
  for kernel in (params['q']['kernel'].reshape(D, H * 6).T, params['out']['kernel'].reshape(H * 6, D)):
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(D), atol=1e-5)
  assert jnp.abs(init(make(), X)['params']['mixer']['q']['kernel']).max() < 0.1


@pytest.mark.sampled(2)
@pytest.mark.parametrize('text', ['softmax', 'linear', 'convolution(3)', 'mamba', 'recurrent'])
def test_mixers_accept_flax_initializers(text):
  position = 'rope' if text == 'softmax' else 'none'
  make = lambda **more: tfm.build_mixer(text, **SIZES, position=position, **more)
  ones = init(make(initializer=nn.initializers.constant(0.25)), X)
  assert any((leaf == 0.25).all() for leaf in jax.tree.leaves(ones))
  assert not any((leaf == 0.25).all() for leaf in jax.tree.leaves(init(make(), X)))


# The first is always in the sample: without positions nothing acts.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
  'position', ['none', 'rope', 'alibi', 't5', 'learned', 'sinusoidal', 'transformer_xl']
)
def test_positions_act_wherever_they_do_in_a_model(position):
  layer = tfm.build_mixer('softmax', **SIZES, position=position, mask='full')
  variables = init(layer, X)
  spread = jax.tree.map(lambda x: jax.random.normal(jax.random.key(2), x.shape), variables)
  roll = lambda x: jnp.roll(x, 3, axis=1)
  is_equivariant = np.allclose(roll(apply(layer, spread, X)), apply(layer, spread, roll(X)), atol=1e-4)
  assert is_equivariant == (position == 'none')


@pytest.mark.slow
def test_a_layer_of_ones_own_module_trains():
  class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
      return x + tfm.build_mixer('softmax', **SIZES)(nn.LayerNorm()(x))

  params = Block().init(jax.random.key(0), X)  # with the names of its axes
  gradient = jax.grad(lambda params: (Block().apply(params, X) ** 2).sum())(params)
  assert all(jnp.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize('kernel', ['dense', 'chunked', 'auto'])
@pytest.mark.parametrize(
  'mask, settings',
  [
    ('full', {}),
    ('causal', dict(is_causal=True)),
    ('causal & window(3)', dict(is_causal=True, local_window_size=3)),
  ],
)
def test_attend_is_the_attention_of_jax(kernel, mask, settings):
  q, k, v = (jax.random.normal(jax.random.key(i), (B, T, heads, C)) for i, heads in enumerate((4, 2, 2)))
  expected = jax.nn.dot_product_attention(q, k, v, **settings)
  attend = jax.jit(lambda *qkv: tfm.attend(*qkv, mask, kernel))
  np.testing.assert_allclose(attend(q, k, v), expected, atol=1e-5)


def test_attend_separates_documents():
  q, k, v = (jax.random.normal(jax.random.key(i), (1, 6, 2, C)) for i in range(3))
  context = Context(jnp.array([[0, 1, 0, 1, 2, 0]]), jnp.array([[1, 1, 2, 2, 2, 0]]))
  attend = jax.jit(tfm.attend)
  got = attend(q, k, v, context=(context, context))
  parts = [attend(*(x[:, a:b] for x in (q, k, v))) for a, b in ((0, 2), (2, 5))]
  np.testing.assert_allclose(got, jnp.concatenate([*parts, jnp.zeros((1, 1, 2, C))], 1), atol=1e-5)


def test_a_position_rotates():
  rope = tfm.build_position('rope', heads=H, head_width=C, length=T)
  q = X.reshape(B, T, H, C)
  places = jnp.broadcast_to(jnp.arange(T), (B, T))
  rotate = jax.jit(lambda shift: rope.apply({}, q, q, places + shift, places + shift, method='rotate'))
  logits = [jnp.einsum('BTHC,BSHC->BHTS', *rotate(shift)) for shift in (0, 5)]
  np.testing.assert_allclose(*logits, atol=1e-4)  # only distances count
  assert not np.allclose(logits[0], jnp.einsum('BTHC,BSHC->BHTS', q, q), atol=1e-2)


@pytest.mark.parametrize(
  'text, more, sentence',
  [
    ('sofmax', {}, "config.model.mixer='sofmax' names 'sofmax'.*did you mean 'softmax'"),
    ('softmax', dict(posiiton='rope'), "config.model.posiiton='rope' is not a field.*mean 'position'"),
    ('softmax', dict(head_width=None, heads=5), 'config.model.heads=5 does not divide config.model.width=12'),
    ('mamba', dict(kernel='chunked', position='none'), "mixer='mamba' has no kernel, so kernel='chunked'"),
    ('mamba', {}, "mixer='mamba' does not support the .* of position='rope'"),
  ],
)
def test_what_a_mixer_does_not_support_is_refused(text, more, sentence):
  with pytest.raises(ValueError, match=sentence):
    tfm.build_mixer(text, **SIZES | more)


def test_several_documents_per_row_are_refused_where_they_would_mix():
  layer = tfm.build_mixer('linformer(4)', **SIZES, position='none', mask='full')
  context = Context(jnp.zeros((B, T), jnp.int32), jnp.ones((B, T), jnp.int32))
  with pytest.raises(ValueError, match='Linformer does not separate the documents of a row'):
    layer.init(jax.random.key(0), X, context)
