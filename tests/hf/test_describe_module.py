"""`describe_module` gives equal descriptions for equal models, whatever the training length, and only for
these.
"""

import jax
import numpy as np
import pytest

from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.conformance import collect, tiny
from tfm.hf import from_config
from tfm.hf.export import describe_module
from tfm.mixers.protocol import Context


QUICK = 'alibi', 'learned', 'rope'
LATENT = dict(mixer='latent(rank=8, rope_width=4)', head_width=8)


def describe(length=16, **model):
  config = dict(model=dict(layers=2, width=32, heads=4, bias=True) | model, data=dict(length=length))
  return describe_module(from_config.build_model(resolve_config(complete(config)), 50))


@pytest.mark.parametrize(
  'one, other',
  [
    (dict(norm='layernorm'), dict(norm='layernorm(epsilon=1e-05, bias=True)')),
    (dict(position='learned'), dict(position='learned(rows=16)')),
    (dict(position='learned(rows=64)', length=16), dict(position='learned(rows=64, stddev=0.1)', length=32)),
    (dict(position='rope(theta=10000)', length=16), dict(position='rope', length=32)),
    (
      dict(position='rope(scaling="yarn(factor=4, original=8)")'),
      dict(position='rope(scaling="yarn(original=8, factor=4.0)")'),
    ),
    (
      dict(position='rope(scaling="dynamic(factor=2, original=32)")', length=16),
      dict(position='rope(scaling="dynamic(factor=2, original=32)")', length=32),
    ),
    (LATENT, LATENT | dict(length=32)),
    (dict(mixer='softmax(biases=None)'), dict(mixer='softmax')),
  ],
)
def test_equal_models_have_equal_descriptions(one, other):
  assert describe(**one) == describe(**other)


@pytest.mark.parametrize(
  'one, other',
  [
    (dict(norm='layernorm'), dict(norm='layernorm(bias=False)')),
    (dict(norm='layernorm'), dict(norm='layernorm(1e-6)')),
    (dict(position='learned(rows=64)'), dict(position='learned(rows=32)')),
    (dict(position='learned(rows=64)'), dict(position='learned(rows=64, before=2)')),
    (dict(position='learned', length=16), dict(position='learned', length=32)),
    (dict(position='rope'), dict(position='rope(interleaved=True)')),
    (dict(position='rope'), dict(position='rope(fraction=0.5)')),
    (dict(position='rope'), dict(position='rope(theta=500)')),
    (
      dict(position='rope(scaling="dynamic(factor=2, original=8)")', length=16),
      dict(position='rope(scaling="dynamic(factor=2, original=8)")', length=32),
    ),
    # Equal rotations up to this length, different ones beyond.
    (
      dict(position='rope(scaling="dynamic(factor=2, original=16)")'),
      dict(position='rope(scaling="dynamic(factor=2, original=32)")'),
    ),
    # The base changes the rotation of the four rotated channels.
    (LATENT | dict(position='rope'), LATENT | dict(position='rope(theta=500)')),
    (LATENT, LATENT | dict(mixer='latent(rank=8, rope_width=6)')),
    (dict(feed_forward='relu'), dict(feed_forward='gelu')),
    (dict(mask='causal'), dict(mask='causal & window(8)')),
    (dict(residual='parallel'), dict(residual='sequential')),
    (dict(kv_heads=1), dict(kv_heads=2)),
    (dict(score='dot'), dict(score='dot(scale=0.5)')),
  ],
)
def test_different_models_have_different_descriptions(one, other):
  assert describe(**one) != describe(**other)


def test_latent_attention_describes_rope_with_its_rotated_width():
  """And with the head width of the config in the trunk, which rotates nothing."""
  widths = [part[1]['head_width'] for part in find_modules(describe(**LATENT)) if part[0].__name__ == 'Rope']
  assert set(widths) == {4, 8}


def find_modules(tree):
  """Yields all (type, attributes) pairs in a description."""
  if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[0], type):
    yield tree
    tree = tuple(tree[1].values())
  if isinstance(tree, tuple):
    for part in tree:
      yield from find_modules(part)


@pytest.mark.parametrize(
  'position',
  [pytest.param(text, marks=[] if text in QUICK else pytest.mark.slow) for text in collect.specs('position')],
)
def test_equal_descriptions_mean_equal_programs(position):
  """Every position, at two training lengths: two models have one description just if they have one jaxpr."""
  models = [
    tiny.decoder(length=length, position=position, layers=1) for length in (tiny.LENGTH, 2 * tiny.LENGTH)
  ]
  have_equal_descriptions = describe_module(models[0]) == describe_module(models[1])
  one, other = (trace(model, np.arange(tiny.LENGTH)[None]) for model in models)
  have_equal_programs = str(one.jaxpr) == str(other.jaxpr) and all(
    np.array_equal(a, b) for a, b in zip(one.consts, other.consts, strict=True)
  )
  assert have_equal_descriptions == have_equal_programs, (
    f'{position}: trained at {tiny.LENGTH} and {2 * tiny.LENGTH} tokens the programs are '
    f'{"equal" if have_equal_programs else "different"}, the descriptions are not'
  )


def trace(model, tokens):
  context = Context.contiguous(tokens)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens, context)
  return jax.make_jaxpr(lambda params: model.apply(params, tokens, context)[0])(params)
