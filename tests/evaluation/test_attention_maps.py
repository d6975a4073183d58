"""Attention weights that mixers expose: those of the formula, and those that the values were weighted by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import pairs
from tests.reference import layers
from tfm.conformance import attention as formula
from tfm.conformance import collect
from tfm.conformance.tiny import LENGTH, VOCAB, Tiny, decoder, parameters
from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokenizers.char import Char
from tfm.decoding.unroll_layers import unroll_layers
from tfm.evaluation import attention_maps
from tfm.kernels.protocol import Kernel
from tfm.mixers.protocol import ATTENTION, Context


TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (1, LENGTH)))
# Two documents and padding between and after them.
SEGMENTS = np.array([[1] * 5 + [0] + [2] * 4 + [0] * 2])
POSITIONS = np.array([[*range(5), 0, *range(4), 0, 0]])


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def seen(predicate):
  return formula.seen(predicate, POSITIONS, POSITIONS, SEGMENTS, SEGMENTS)


def inside(tiny):
  """(weights [B H T S], what its modules made by name, parameters, output) of the mixer of a model's one
  layer.
  """
  stored = 'v', 'v_global', 'norm', 'mixer'
  context = tiny.context(POSITIONS, SEGMENTS, 0)
  _, found = jax.jit(
    lambda params: tiny.model.apply(
      {'params': params},
      TOKENS,
      context,
      mutable=[ATTENTION, 'intermediates'],
      capture_intermediates=lambda module, method: method == '__call__' and module.name in stored,
    )
  )(tiny.params)
  [weights] = attention_maps.list_kinds(tiny.model)[0].weights(found[ATTENTION])
  result = found['intermediates']['stack']['layers_0']['block_0']['mixer']
  assert attention_maps.list_kinds(tiny.model)[0].mixers[0].exposes_attention
  params = host(tiny.params['stack']['layers_0']['block_0']['mixer'])
  return np.asarray(weights), result, params, result['__call__'][0][0]


def host(params):
  return jax.tree.map(np.asarray, params)


def one_layer(**fields):
  return Tiny(layers=1, scan=False, **fields)


@pytest.mark.parametrize(
  'fields, predicate',
  [
    (dict(mixer='softmax', position='rope'), lambda q, k: k <= q),
    (
      dict(
        mixer='softmax(soft_cap=5.0, qk_norm="rmsnorm", sinks=True)',
        position='deberta(2)',
        mask='causal & window(2)',
      ),
      lambda q, k: 0 <= q - k <= 2,
    ),
    (
      dict(
        mixer='softmax(normalizer="sigmoid", value_width=3)', position='t5', score='additive', mask='full'
      ),
      lambda q, k: True,
    ),
    (
      dict(mixer='latent(rank=8, rope_width=8)', kv_heads=None, dropout=dict(attention=0.5)),
      lambda q, k: k <= q,
    ),
    (
      dict(mixer='longformer(2)', mask='causal & longformer(1, 2)'),
      lambda q, k: k <= q and (q - k <= 1 or k < 2),
    ),
  ],
  ids=lambda x: x['mixer'] if isinstance(x, dict) else '',
)
def test_the_values_were_weighted_so(fields, predicate):
  """out = projection of Σ weight · value is what the mixer gave, whatever kernel made it."""
  weights, result, params, out = inside(one_layer(**fields))
  visible = np.broadcast_to(seen(predicate)[:, None], weights.shape)
  assert weights.dtype == np.float32 and (weights[~visible] == 0).all() and (weights[visible] > 0).all()
  total = weights.sum(-1)[visible.any(-1)]
  if 'sinks' in fields['mixer']:
    assert (total < 0.999).any() and (total < 1 + 1e-6).all()
  elif 'sigmoid' not in fields['mixer']:
    close(total, 1)

  if 'latent' in fields['mixer']:
    mixed = formula.attend(weights, np.einsum('BTR,RHC->BTHC', result['norm']['__call__'][0], params['v_up']))
  else:
    mixed = formula.attend(weights, np.asarray(result['v']['__call__'][0]))
  if 'longformer' in fields['mixer']:
    by_global = formula.attend(weights, np.asarray(result['v_global']['__call__'][0]))
    mixed = np.where((POSITIONS < 2)[..., None, None], by_global, mixed)
  again = np.einsum('BTHC,HCD->BTD', mixed, params['out']['kernel']) + params['out']['bias']
  np.testing.assert_allclose(again, out, rtol=1e-4, atol=1e-4)


def test_the_formula():
  """softmax(q · k / √C) of the first layer, by hand from the embedding on."""
  tiny = one_layer(position='none')
  weights, _, p, _ = inside(tiny)
  norm = host(tiny.params['stack']['layers_0']['block_0']['mixer_norm'])
  x = layers.layernorm(
    np.asarray(tiny.params['embedding']['table'], np.float64)[TOKENS], norm['scale'], norm['bias']
  )
  q, k = (np.einsum('btd,dhc->bthc', x, p[name]['kernel']) + p[name]['bias'] for name in 'qk')
  close(weights, formula.weights(formula.dot_logits(q, k), seen(lambda q, k: k <= q)))


@pytest.mark.slow
def test_layers_are_counted_through_pattern_scan_and_rest():
  """Of a, b, a the scan holds the first two and the rest the third; side by side they are the same."""
  model = decoder(
    layers=3, pattern=('a', 'b'), blocks=dict(a=dict(mask='causal & window(0)'), b=dict(heads=2, kv_heads=1))
  )
  params = parameters(model)
  inputs = TOKENS, Context.contiguous(TOKENS)
  labels = dict(text=[str(i) for i in range(LENGTH)])
  [scanned] = attention_maps.compute_maps(model, params, inputs, labels)
  [apart] = attention_maps.compute_maps(*unroll_layers(model, params), inputs, labels)
  assert scanned.kind == 'decoder' and scanned.queries == scanned.keys == labels['text']
  assert {i: list(heads) for i, heads in scanned.layers.items()} == {
    0: [0, 1, 2, 3],
    1: [0, 1],
    2: [0, 1, 2, 3],
  }
  # A window of nothing is the token itself, in the first layer and in the third.
  assert all((scanned.layers[i][h] == np.eye(LENGTH)).all() for i in (0, 2) for h in range(4))
  second = scanned.layers[1]
  assert all(((second[h] > 0) == np.tril(np.ones((LENGTH, LENGTH), bool))).all() for h in (0, 1))
  jax.tree.map(close, dict(scanned.layers), dict(apart.layers))
  [some] = attention_maps.compute_maps(model, params, inputs, labels, layers=[1, 2], heads=[1, 3])
  assert {i: list(heads) for i, heads in some.layers.items()} == {1: [1], 2: [1, 3]}
  assert (some.layers[1][1] == second[1]).all()


def test_an_encoder_decoder_has_three_kinds():
  model, params = pairs.make_model(
    layers=2, scan=False, encoder=dict(layers=1, mask='window(1, 1)'), cross=dict(heads=2)
  )
  source, target = np.arange(7)[None], np.arange(5)[None]
  labels = dict(source=list('abcdefg'), text=list('vwxyz'))
  maps = attention_maps.compute_maps(
    model, params, [target, Context.contiguous(target), None, source, Context.contiguous(source)], labels
  )
  assert [(m.kind, len(m.queries), len(m.keys), len(m.layers), len(m.layers[0])) for m in maps] == [
    ('encoder', 7, 7, 1, 4),
    ('decoder', 5, 5, 2, 4),
    ('cross', 5, 7, 2, 2),
  ]
  encoder, own, cross = (
    np.stack([np.stack(list(heads.values())) for heads in m.layers.values()]) for m in maps
  )
  t, s = np.indices((7, 7))
  assert ((encoder > 0) == (abs(t - s) <= 1)).all() and (np.triu(own, 1) == 0).all() and (cross > 0).all()
  for weights in (encoder, own, cross):
    close(weights.sum(-1), 1)
  # An encoder by itself has one text, and one kind.
  [alone] = attention_maps.list_kinds(model.encoder())
  assert (alone.name, alone.queries, alone.keys) == ('encoder', 'text', 'text')


def test_nothing_is_computed_unless_it_is_requested(monkeypatch):
  """Training traces the very program that it would without."""
  model = decoder(layers=2)
  assert set(jax.eval_shape(model.init, jax.random.key(0), *model.example(1, 4))) == {'params'}

  def refuse(*args, **calls):
    raise AssertionError('weights are computed')

  monkeypatch.setattr(Kernel, 'attention_weights', staticmethod(refuse))
  params = parameters(model)
  jax.eval_shape(lambda: model.apply({'params': params}, *model.example(1, 4), mutable=['losses', 'metrics']))
  with pytest.raises(AssertionError, match='weights are computed'):
    jax.eval_shape(lambda: model.apply({'params': params}, *model.example(1, 4), mutable=[ATTENTION]))


@pytest.mark.slow
@pytest.mark.parametrize('mixer', collect.first('mixer'))
def test_mixers_that_declare_attention_weights_expose_them(mixer):
  position, mask = collect.surroundings(mixer)['position'], collect.surroundings(mixer)['mask']
  model = decoder(layers=1, scan=False, mixer=mixer, position=position, mask=mask, causal=False)
  example = jax.eval_shape(lambda: model.example(1, LENGTH))
  params = jax.eval_shape(model.init, jax.random.key(0), *example)
  found = jax.eval_shape(
    lambda p, *arguments: model.apply(p, *arguments, mutable=[ATTENTION])[1], params, *example
  )
  [kind] = attention_maps.list_kinds(model)
  shapes = [None if x is None else x.shape for x in kind.weights(found.get(ATTENTION, {}))]
  assert shapes == [(1, 4, LENGTH, LENGTH) if kind.mixers[0].exposes_attention else None]


def test_labels_show_what_could_not_be_seen():
  def shown(tokenizer, text):
    return attention_maps.label_tokens([tokenizer.eos_id, *tokenizer.encode(text)], tokenizer)

  assert shown(Bytes(), 'a b\n\tü\0') == ['<eos>', 'a', '␣', 'b', '↵', '⇥', '<C3>', '<BC>', '<00>']
  assert shown(Char(alphabet='abü\u200b'), 'ü\u200bz') == ['<eos>', 'ü', '<200B>', 'z']
