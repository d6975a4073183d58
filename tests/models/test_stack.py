"""The stack: a scan is the loop it stands for, at any remat policy, and does not grow with depth."""

import collections
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from tests.jaxprs import list_equations
from tfm.conformance.tiny import LENGTH, VOCAB, decoder, parameters
from tfm.mixers.protocol import Context
from tfm.models import memory
from tfm.models.stack import Stack


TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH)))
PATTERN = dict(
  pattern=('local', 'far'),
  blocks=dict(
    local=dict(mask='causal & window(2)', kv_heads=1), far=dict(position='none', feed_forward='swiglu')
  ),
)


def turns(stack):
  """The parameters of a scanned stack as those of an unscanned one."""
  layers = stack['layers']
  repeats = jax.tree.leaves(layers)[0].shape[0]
  rest = {'rest': stack['rest']} if 'rest' in stack else {}
  return {f'layers_{i}': jax.tree.map(lambda x: x[i], layers) for i in range(repeats)} | rest


def run(model, params, context=None, caches=None, tokens=TOKENS):
  context = Context.contiguous(tokens) if context is None else context
  return jax.jit(lambda p: model.apply({'params': p}, tokens, context, caches))(params)


def gradient(model, params):
  def loss(params):
    logits, _ = model.apply({'params': params}, TOKENS, Context.contiguous(TOKENS))
    return jnp.sin(logits).sum()

  return jax.jit(jax.grad(loss))(params)


def close(a, b, tolerance=2e-5):
  """Equal up to the order of sums, judged by the largest number there is."""
  size = max(float(np.abs(x).max()) for x in jax.tree.leaves(b))
  for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_allclose(
      x, y, rtol=tolerance, atol=tolerance * size, err_msg=jax.tree_util.keystr(path)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  'model',
  [
    dict(layers=3),
    dict(layers=1),
    PATTERN | dict(layers=4),
    PATTERN | dict(layers=5),
    PATTERN | dict(layers=2),
  ],
  ids=['plain', 'one layer', 'two turns', 'an incomplete last turn', 'one turn'],
)
def test_scan_is_the_loop(model):
  scanned, unscanned = decoder(**model), decoder(scan=False, **model)
  params = parameters(scanned)
  apart = params | {'stack': turns(params['stack'])}
  assert jax.tree.map(jnp.shape, apart) == jax.tree.map(jnp.shape, parameters(unscanned))
  close(run(scanned, params)[0], run(unscanned, apart)[0])
  if model['layers'] == 5:
    grads = gradient(scanned, params)
    close(grads | {'stack': turns(grads['stack'])}, gradient(unscanned, apart))


def test_an_incomplete_last_turn_has_its_own_parameters_in_order():
  stack = parameters(decoder(layers=5, **PATTERN))['stack']
  assert set(stack) == {'layers', 'rest'} and set(stack['rest']) == {'block_0'}
  assert set(stack['layers']) == {'block_0', 'block_1'}

  def rank(group, block):
    return group[block]['feed_forward']['up']['kernel'].ndim

  assert rank(stack['layers'], 'block_0') == 3 and rank(stack['rest'], 'block_0') == 2
  # The second block of a turn is the gated one.
  assert ['gate' in stack['layers'][f'block_{i}']['feed_forward'] for i in range(2)] == [False, True]
  # What is left of a turn is its beginning.
  assert 'gate' not in stack['rest']['block_0']['feed_forward']


@pytest.mark.slow
@pytest.mark.parametrize('scan', [True, False])
def test_caches_have_the_structure_of_the_stack(scan):
  model = decoder(layers=5, scan=scan, **PATTERN)
  params = parameters(model)
  caches = model.init_caches(2, LENGTH)
  expected, none = run(model, params)
  logits, after = run(model, params, caches=caches)
  close(logits, expected)
  assert none is None and jax.tree.structure(after) == jax.tree.structure(caches)
  assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, caches)
  assert set(caches) == set(params['stack'])


POLICIES = (
  'everything',
  'full',
  'dots',
  'dots_with_no_batch_dims',
  "save('attention mixer/q feed_forward')",
  "offload('block_input')",
  "save('mixer', offload='mixer/k attention block_input')",
)


@pytest.mark.parametrize('scan', [True, False])
@pytest.mark.slow
def test_remat_changes_no_gradient(scan):
  layers = 2 if scan else 1
  plain = decoder(layers=layers, scan=scan)
  params = parameters(plain)
  expected = gradient(plain, params)
  for policy in POLICIES:
    close(gradient(decoder(layers=layers, scan=scan, remat=policy), params), expected)


@functools.cache
def dots(remat, **model):
  """How many matrix products a training step spells out."""
  model = decoder(layers=3, remat=remat, **model)

  def loss(params):
    return model.apply({'params': params}, TOKENS, Context.contiguous(TOKENS))[0].sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss))(parameters(model))
  return str(jaxpr).count('dot_general')


def test_remat_computes_again_what_its_policy_does_not_keep():
  full, none, stored = dots('full'), dots('none'), dots('dots')
  assert full > none
  assert stored == none  # every product is kept, so none is made twice
  assert none < dots('dots_with_no_batch_dims') < full  # the attention's two are made again


def costly(jaxpr):
  """The products of a program, and its loops that compute something."""
  for eqn in jaxpr.eqns:
    inner = list(jaxprs_in_params(eqn.params))
    if eqn.primitive.name in ('dot_general', 'ragged_dot', 'while') or (
      eqn.primitive.name == 'scan' and any(body.eqns for body in inner)
    ):
      yield eqn.primitive.name
    for body in inner:
      yield from costly(body)


@pytest.mark.parametrize(
  'fields',
  [
    dict(feed_forward='gelu', feed_forward_width=80),
    pytest.param(dict(kernel='chunked(4, 4)', feed_forward='swiglu'), marks=pytest.mark.slow),
    dict(mixer='mamba', position='none', feed_forward='none'),
    pytest.param(dict(mixer='mamba2(state=4)', position='none', feed_forward='none'), marks=pytest.mark.slow),
    pytest.param(dict(feed_forward='mixture_of_experts(experts=2)'), marks=pytest.mark.slow),
  ],
  ids=lambda fields: fields.get('mixer', fields.get('kernel', fields.get('feed_forward'))),
)
def test_training_without_a_policy_stores_products_and_recurrences_alone(fields):
  """Neither is computed twice, the gradient is the same, and less is stored."""

  def measure(remat):
    model = decoder(layers=3, remat=remat, **fields)
    params, context = parameters(model), Context.contiguous(TOKENS, train=True)
    run = jax.jit(jax.grad(lambda params: model.apply({'params': params}, TOKENS, context)[0].sum()))
    traced = run.trace(params)
    jaxpr, gradients = traced.jaxpr.jaxpr, traced.lower().compile()(params)
    return gradients, collections.Counter(costly(jaxpr)), memory.peak(jaxpr)

  ours, counts, stored = measure('none')
  expected, all_counts, all_stored = measure('everything')
  close(ours, expected)
  assert counts <= all_counts and stored < 0.95 * all_stored


def test_without_a_policy_neither_what_rope_stacks_nor_random_numbers_are_stored():
  """Both have four bytes an element; the projections before RoPE have two, and what dropout keeps has one."""
  model = decoder(layers=3, position='rope', dtype='bfloat16', dropout=dict(residual=0.2))
  params, context = parameters(model), Context.contiguous(TOKENS, train=True)
  run = jax.grad(
    lambda params: (
      model.apply({'params': params}, TOKENS, context, rngs={'dropout': jax.random.key(0)})[0]
      .astype('float32')
      .sum()
    )
  )
  shapes = collections.Counter(
    (str(x.aval.dtype), x.aval.ndim)
    for eqn in jax.make_jaxpr(run)(params).jaxpr.eqns
    if eqn.primitive.name == 'scan'
    for x in eqn.outvars
    if x.aval.shape[:3] == (3, *TOKENS.shape)
  )
  assert shapes['bool', 4] == 2  # of both branches, by layer, row, token and channel
  assert shapes['bfloat16', 5] and not shapes['float32', 6] and not shapes['uint32', 4]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
  'names, products',
  [
    ('block_input', 0),  # it is stored in any case
    ('mixer/q', 1),
    ('mixer/q mixer/k mixer/v', 3),
    ('attention', 1),  # of the dense kernel's two products the weights' is needed again
    ('feed_forward/up', 1),
    ('mixer', 1),
    ('mixer/q mixer/k mixer/v attention mixer feed_forward/up', 6),
  ],
)
@pytest.mark.parametrize('policy', ['save', 'offload'])
def test_what_has_a_name_that_is_stored_is_not_computed_again(policy, names, products):
  assert dots(f'{policy}({names!r})') == dots('full') - products


def test_a_blockwise_kernel_that_is_stored_does_not_run_again():
  """Its forward pass has two products for each of two kinds of blocks."""
  saved = dots("save('attention')", kernel='chunked')
  assert saved == dots('full', kernel='chunked') - 4


def stored(remat, **model):
  """The shapes [layers, …] of what the forward scan stores for the backward pass; 'host' if there."""
  model = decoder(layers=3, remat=remat, **model)

  def loss(params):
    return model.apply({'params': params}, TOKENS, Context.contiguous(TOKENS))[0].sum()

  jaxpr = jax.make_jaxpr(lambda params: jax.vjp(loss, params)[1])(parameters(model)).jaxpr
  (scan,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == 'scan']
  body = scan.params['jaxpr']
  inner = getattr(body, 'jaxpr', body).outvars  # of one layer: what is stored has one axis more outside
  found = [x.aval for x, y in zip(scan.outvars, inner, strict=True) if len(x.aval.shape) > len(y.aval.shape)]
  return sorted((*x.shape[1:], *['host'] * (x.memory_space == jax.memory.Space.Host)) for x in found)


def test_only_what_is_named_is_stored():
  """Beside the input of a layer [B T D]: queries [B T H C]; of blockwise kernels output and log-sum-exp."""
  x, q = (2, LENGTH, 16), (2, LENGTH, 4, 4)
  assert stored('full') == [x] == stored("save('block_input')")
  assert stored("save('mixer/q')") == [q, x]
  assert stored("offload('block_input')") == [(*x, 'host')]
  assert stored("save('mixer', offload='mixer/q')") == sorted([(*q, 'host'), x, x])
  log_sum_exp = 2, 2, 2, LENGTH  # [B K G T]
  assert stored("save('attention')", kernel='chunked') == [log_sum_exp, q, x]


def size(**model):
  """Equations of one gradient."""
  result = decoder(**model)

  def loss(params):
    return result.apply({'params': params}, TOKENS, Context.contiguous(TOKENS))[0].sum()

  return len([*list_equations(jax.make_jaxpr(jax.grad(loss))(parameters(result)).jaxpr)])


@pytest.mark.slow
def test_what_is_compiled_does_not_grow_with_depth():
  assert size(layers=2) == size(layers=9)
  assert size(layers=3, **PATTERN) == size(layers=9, **PATTERN)
  assert size(layers=9, scan=False) > 2 * size(layers=2, scan=False)  # or the count would count nothing


def test_dropout_differs_from_layer_to_layer():
  """One key for all turns of a scan would drop the same numbers in each."""

  class Drops(nn.Module):
    @nn.compact
    def __call__(self, x, memory, context, cache):
      return nn.Dropout(0.5, deterministic=False)(jnp.ones_like(x)) + 10 * x, None

  for scan in (True, False):
    x = jnp.zeros((1, 50, 40))
    rngs = {'dropout': jax.random.key(0)}
    result, _ = Stack((Drops,), 3, scan, None).apply(
      {}, x, None, Context.contiguous(x[..., 0]), None, rngs=rngs
    )
    digits = np.asarray(result).astype(int)  # one decimal digit a layer: 0 or 2
    layers = [digits // 10**i % 10 for i in range(3)]
    assert all(set(np.unique(d)) == {0, 2} for d in layers)
    assert all(abs((layers[i] == layers[j]).mean() - 0.5) < 0.06 for i, j in ((0, 1), (0, 2), (1, 2)))
