"""The recurrent mixer's cells are torch.nn.LSTM and torch.nn.GRU under the same weights."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import tfm.mixers  # noqa: E402
from tfm import spec  # noqa: E402
from tfm.layers.initializer import normal  # noqa: E402
from tfm.mixers.protocol import Context, Mixer  # noqa: E402
from tfm.mixers.recurrent import FORGET_BIAS  # noqa: E402


B, T, D, F = 3, 40, 6, 5
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
GATES = {'lstm': 4, 'gru': 3}


def published(cell, bias):
  """The module and its weights, drawn anew so that no gate is half open."""
  torch.manual_seed(0)
  module = getattr(torch.nn, cell.upper())(D, F, bias=bias, batch_first=True)
  with torch.no_grad():
    for weight in module.parameters():
      weight.copy_(torch.randn_like(weight))
  return module, {name.removesuffix('_l0'): w.numpy() for name, w in module.state_dict().items()}


def gates(cell, x):
  """Theirs [gates · F, N] as ours [N, F, gates]."""
  return x.reshape(GATES[cell], F, -1).transpose(2, 1, 0)


def parameters(cell, w):
  """Ours from theirs, which has two biases that only GRU's candidate keeps apart."""
  params = dict(input=dict(kernel=gates(cell, w['weight_ih'])), recurrent=gates(cell, w['weight_hh']))
  if 'bias_ih' in w:
    outer, inner = (w[name].reshape(GATES[cell], F).T.copy() for name in ('bias_ih', 'bias_hh'))
    if cell == 'lstm':
      outer, inner = outer + inner, None
      outer[:, 1] -= FORGET_BIAS
    else:
      outer[:, :2] += inner[:, :2]
      params['recurrent_bias'] = inner[:, 2:]
    params['input']['bias'] = outer
  return params


def ours(cell, params, bias, pieces=(T,)):
  """The hidden states, shown by an identity for the projection out, and the last cache."""
  module = spec.factory(
    f'recurrent({cell!r}, hidden={F})',
    tfm.mixers,
    Mixer,
    width=D,
    heads=2,
    kv_heads=2,
    head_width=3,
    bias=bias,
    dropout=0.0,
    initializer=normal(),
    output_initializer=normal(),
    dtype=jnp.float32,
  )()
  out = dict(kernel=jnp.eye(F, D)) | (dict(bias=jnp.zeros(D)) if bias else {})
  cache, read, start = module.init_cache(B, T), [], 0
  for piece in pieces:
    x = jnp.asarray(X[:, start : start + piece])
    y, cache = module.apply({'params': params | {'out': out}}, x, None, Context.contiguous(x[..., 0]), cache)
    read.append(y)
    start += piece
  return jnp.concatenate(read, 1)[..., :F], cache


@pytest.mark.parametrize('pieces', [(T,), (17, 22, 1)], ids=str)
@pytest.mark.parametrize('cell, bias', [('lstm', True), ('gru', True), ('gru', False)])
def test_hidden_states_and_last_state(cell, bias, pieces, record_difference):
  module, w = published(cell, bias)
  with torch.no_grad():
    theirs, last = module(torch.tensor(X))
  h, cache = ours(cell, parameters(cell, w), bias, pieces)
  np.testing.assert_allclose(h, theirs.numpy(), rtol=1e-5, atol=1e-5)
  record_difference('mixer/recurrent', 'torch', h, theirs.numpy())
  last = last if cell == 'lstm' else (last,)
  for a, b in zip(cache.state, last, strict=True):
    np.testing.assert_allclose(a, b[0].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('cell', GATES)
def test_gradients(cell):
  """Ours come from a backward pass of our own."""
  module, w = published(cell, True)
  weight = np.random.default_rng(1).standard_normal((B, T, F)).astype(np.float32)
  (module(torch.tensor(X))[0] * torch.tensor(weight)).sum().backward()
  theirs = {name.removesuffix('_l0'): p.grad.numpy() for name, p in module.named_parameters()}
  expected = dict(
    input=dict(kernel=gates(cell, theirs['weight_ih']), bias=gates(cell, theirs['bias_ih'])[0]),
    recurrent=gates(cell, theirs['weight_hh']),
  )
  if cell == 'gru':
    expected['recurrent_bias'] = gates(cell, theirs['bias_hh'])[0, :, 2:]
  params = jax.tree.map(jnp.asarray, parameters(cell, w))
  found = jax.grad(lambda params: (ours(cell, params, True)[0] * weight).sum())(params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max()), found, expected
  )


def test_an_lstm_without_biases_still_remembers():
  """Its forget gate starts as if its bias were 1: torch with that bias and no other."""
  module, w = published('lstm', True)
  with torch.no_grad():
    for name, weight in module.named_parameters():
      if name.startswith('bias'):
        weight.zero_()
    module.bias_ih_l0[F : 2 * F] = 1.0
    theirs = module(torch.tensor(X))[0].numpy()
  h, _ = ours('lstm', parameters('lstm', {k: v for k, v in w.items() if k.startswith('weight')}), False)
  np.testing.assert_allclose(h, theirs, rtol=1e-5, atol=1e-5)
