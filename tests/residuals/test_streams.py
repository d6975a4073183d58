"""Residuals of several streams against their formulas, one token and one stream after another."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_block import NORMS, X, block, f, g, n
from tfm.config.assemble import Experiment
from tfm.conformance import tiny
from tfm.mixers.protocol import Context
from tfm.models.stack import Stack


pytestmark = pytest.mark.slow
N = 3
B, T, D = X.shape
H = np.random.default_rng(4).standard_normal((B, T, N, D))


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def weigh_freely(p, h):
  """a, A, b of one token (Zhu et al. 2024, algorithm 2)."""
  normed = n(p['norm']['a'], h)
  read, mix, write = (
    np.tanh(normed @ p[f'{name}_kernel']) * p[f'{name}_scale'] + p[f'{name}_bias']
    for name in ('read', 'mix', 'write')
  )
  return read[:, 0], np.eye(N) + mix, 1 + write[:, 0]


def weigh_on_manifold(p, h, iterations=3):
  """a, A, b of one token: DeepSeek-V4 in transformers."""
  z = h.reshape(-1) / np.sqrt((h**2).mean() + 1e-6)
  read, write, mix = (
    z @ p[f'{name}_kernel'].reshape(N * D, -1) * p[f'{name}_scale'] + p[f'{name}_bias']
    for name in ('read', 'write', 'mix')
  )
  mix = np.exp(mix.reshape(N, N))
  mix = mix / mix.sum(1, keepdims=True) + 1e-6
  for i in range(iterations):
    mix = mix / (mix.sum(1, keepdims=True) + 1e-6) if i else mix
    mix = mix / (mix.sum(0, keepdims=True) + 1e-6)
  return sigmoid(read) + 1e-6, mix, 2 * sigmoid(write)


def compute_expected(params, weigh):
  out = H.copy()
  for b in range(B):
    for t in range(T):
      for name, branch, a in (('mixer', f, 2), ('feed_forward', g, 3)):
        read, mix, write = weigh(params[f'{name}_connection'], out[b, t])
        y = branch(n(a, sum(read[s] * out[b, t, s] for s in range(N))))
        out[b, t] = [sum(mix[s, r] * out[b, t, s] for s in range(N)) + write[r] * y for r in range(N)]
  return out


@pytest.mark.parametrize(
  'text, weigh',
  [
    (f'hyper_connections({N})', weigh_freely),
    (f'manifold_hyper_connections({N}, iterations=3)', weigh_on_manifold),
  ],
)
def test_formula(text, weigh):
  module, context = block('pre', text), Context.contiguous(jnp.zeros((B, T), jnp.int32))
  x = jnp.asarray(H, jnp.float32)
  draw = np.random.default_rng(5)
  boxed = jax.eval_shape(module.init, jax.random.key(0), x, None, context, None)['params']
  params = jax.tree.map(lambda p: 0.5 * draw.standard_normal(p.shape), nn.unbox(boxed))
  params |= {name: {'a': np.float64(a)} for name, a in NORMS.items()}
  y, _ = module.apply({'params': jax.tree.map(jnp.float32, params)}, x, None, context, None)
  np.testing.assert_allclose(y, compute_expected(params, weigh), rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('scan', [True, False])
def test_hyper_connections_start_as_plain_residuals(scan):
  """All streams are alike at first: the sum of N is N times the plain stream, which the last norm undoes."""

  def logits(**model):
    model = Experiment(tiny.config(scan=scan, norm='layernorm(1e-12)', **model)).build_model(tiny.VOCAB)
    tokens = jnp.arange(8)[None]
    params = nn.unbox(model.init(jax.random.key(0), tokens, Context.contiguous(tokens)))['params']
    return (
      model,
      params,
      lambda params: model.apply({'params': params}, tokens, Context.contiguous(tokens))[0],
    )

  _, plain, run_plain = logits()
  _, params, run = logits(residual='hyper_connections')

  def without_connections(tree):
    return {
      k: without_connections(v) if isinstance(v, dict) else v
      for k, v in tree.items()
      if not k.endswith('_connection')
    }

  assert jax.tree.map(jnp.shape, without_connections(params)) == jax.tree.map(jnp.shape, plain)
  np.testing.assert_allclose(run(params), run_plain(without_connections(params)), rtol=1e-4, atol=1e-5)


class Numbered(nn.Module):
  """Adds 0, 1, 2, … to the streams."""

  def __call__(self, x, memory, context, cache):
    return x + jnp.arange(x.shape[2], dtype=x.dtype)[None, None, :, None], None


@pytest.mark.parametrize('scan', [True, False])
def test_a_stack_sums_its_streams(scan):
  x = jnp.asarray(X)
  context = Context.contiguous(jnp.zeros((B, T), jnp.int32))
  y, _ = Stack((Numbered,), 2, scan, None, streams=3).apply({}, x, None, context, None)
  np.testing.assert_allclose(y, 3 * X + 2 * (0 + 1 + 2), rtol=1e-6)


def test_blocks_of_a_stack_have_as_many_streams():
  blocks = dict(a=dict(residual='hyper_connections(2)'), b=dict())
  with pytest.raises(
    ValueError,
    match=r'config.model.blocks.b.residual has 1 residual streams, and config.model.blocks.a.residual has 2',
  ):
    Experiment(tiny.config(pattern=('a', 'b'), blocks=blocks)).build_model(20)
