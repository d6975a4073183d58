"""The same weights give the same outputs as the published state space blocks, in transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from transformers.models.mamba.modeling_mamba import MambaMixer  # noqa: E402
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer  # noqa: E402

import tfm.mixers  # noqa: E402
from tfm import spec  # noqa: E402
from tfm.layers.initializer import normal  # noqa: E402
from tfm.mixers.protocol import Context, Mixer  # noqa: E402


B, T, D, STATE = 2, 21, 32, 8
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)


def weights(module):
  """Random weights about the published start, norms and biases too."""
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.add_(torch.randn_like(parameter) * 0.2)
  return {name: value.numpy() for name, value in module.eval().state_dict().items()}


def projection(w, name, *shape, part=slice(None)):
  """Rows `part` of a PyTorch projection as a kernel [in …, out …] of this shape, and its bias if any."""
  fields = dict(kernel=w[f'{name}.weight'][part].T.reshape(shape))
  if f'{name}.bias' in w:
    fields['bias'] = w[f'{name}.bias'][part].reshape(shape[1:])
  return fields


def convolution(w, *channels, part=slice(None)):
  weight, bias = w['conv1d.weight'][part, 0], w['conv1d.bias'][part]
  return dict(weight=weight.T.reshape(-1, *channels), bias=bias.reshape(channels))


def assert_equal(record_difference, text, params, module, **fields):
  """In the training form, and read one by one through a cache."""
  result = spec.factory(
    text,
    tfm.mixers,
    Mixer,
    **dict(
      width=D,
      heads=4,
      kv_heads=4,
      head_width=8,
      bias=False,
      dropout=0.0,
      initializer=normal(),
      output_initializer=normal(),
      dtype=jnp.float32,
    )
    | fields,
  )()
  with torch.no_grad():
    theirs = module(torch.tensor(X)).numpy()
  run = jax.jit(
    lambda x, cache: result.apply({'params': params}, x, None, Context.contiguous(x[..., 0]), cache)
  )
  close = dict(rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
  np.testing.assert_allclose(run(X, None)[0], theirs, **close)
  record_difference(f'mixer/{spec.parse(text).name}', 'transformers', run(X, None)[0], theirs)
  cache, read = result.init_cache(B, T), []
  for t in range(T):
    y, cache = run(X[:, t : t + 1], cache)
    read.append(y)
  np.testing.assert_allclose(np.concatenate(read, 1), theirs, **close)


@pytest.mark.parametrize('bias', [False, True])
def test_mamba(bias, record_difference):
  rank, taps, inner = 3, 4, 2 * D
  module = MambaMixer(
    transformers.MambaConfig(
      hidden_size=D,
      state_size=STATE,
      expand=2,
      conv_kernel=taps,
      time_step_rank=rank,
      use_bias=bias,
      num_hidden_layers=1,
    ),
    layer_idx=0,
  )
  w = weights(module)
  params = dict(
    x=projection(w, 'in_proj', D, inner, part=slice(inner)),
    z=projection(w, 'in_proj', D, inner, part=slice(inner, None)),
    convolution=convolution(w, inner),
    x_proj=w['x_proj.weight'].T,
    dt_proj=w['dt_proj.weight'].T,
    dt_bias=w['dt_proj.bias'],
    A_log=w['A_log'],
    D=w['D'],
    out=projection(w, 'out_proj', inner, D),
  )
  assert_equal(
    record_difference, f'mamba(state={STATE}, taps={taps}, rank={rank}, chunk=8)', params, module, bias=bias
  )


@pytest.mark.parametrize('groups, bias', [(1, False), (2, True)])
def test_mamba2(groups, bias, record_difference):
  heads, width, taps = 8, 8, 3
  inner, shared = heads * width, groups * STATE
  module = Mamba2Mixer(
    transformers.Mamba2Config(
      hidden_size=D,
      state_size=STATE,
      expand=2,
      num_heads=heads,
      head_dim=width,
      conv_kernel=taps,
      n_groups=groups,
      chunk_size=8,
      use_bias=bias,
      layer_norm_epsilon=1e-5,
      num_hidden_layers=1,
    ),
    layer_idx=0,
  )
  w = weights(module)
  ends = np.cumsum([inner, shared, shared])
  parts = dict(zip('xBC', (slice(a, b) for a, b in zip((0, *ends), ends))))
  shapes = dict(x=(heads, width), B=(groups, STATE), C=(groups, STATE))
  params = {
    name: projection(w, 'in_proj', D, *shapes[name], part=slice(inner + part.start, inner + part.stop))
    for name, part in parts.items()
  }
  params |= {f'{name}_convolution': convolution(w, *shapes[name], part=part) for name, part in parts.items()}
  out = projection(w, 'out_proj', inner, D)
  params |= dict(
    z=projection(w, 'in_proj', D, heads, width, part=slice(inner)),
    dt=projection(w, 'in_proj', D, heads, part=slice(-heads, None)),
    dt_bias=w['dt_bias'],
    A_log=w['A_log'],
    D=w['D'],
    scale=w['norm.weight'].reshape(heads, width),
    out=out | dict(kernel=out['kernel'].reshape(heads, width, D)),
  )
  assert_equal(
    record_difference,
    f'mamba2(state={STATE}, taps={taps}, chunk=8)',
    params,
    module,
    kv_heads=groups,
    bias=bias,
  )
