"""nGPT: the model by its equations in numpy, weights that stay on the sphere, scales that learn faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.steps import VOCAB, assert_trees_close, initial, sgd, take_steps
from tfm.config.assemble import Experiment
from tfm.mixers.protocol import Context
from tfm.training.gradient_transforms import path_name


pytestmark = pytest.mark.slow
D, H, C = 32, 4, 8
NGPT = {
  'model.width': D,
  'model.heads': H,
  'model.mixer': 'softmax(qk_norm="rmsnorm(epsilon=0.0)")',
  'model.feed_forward': 'swiglu',
  'model.feed_forward_width': 24,
  'model.residual': 'spherical',
  'model.norm_placement': 'res_post',
  'model.parametrization': 'unit_weights',
  'model.tie_embeddings': False,
  'model.vocab_multiple': 8,
}
# Which axis of one layer's array is the width.
WIDTH_AXIS = dict(table=1, output=0, q=0, k=0, v=0, out=2, up=0, gate=0, down=1)


def unit(x, axis=-1):
  return x / np.linalg.norm(x, axis=axis, keepdims=True)


def rotate(x):
  """The first half of the channels with the second."""
  angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(0, C, 2) / C)
  cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
  a, b = x[..., : C // 2], x[..., C // 2 :]
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def ngpt(params, tokens):
  """Logits [T V] of tokens [T] (Loshchilov et al. 2024, eq. 3, 10, 11, 15 to 21)."""
  h, T = unit(params['embedding']['table'][tokens]), len(tokens)
  for layer in range(2):
    p = jax.tree.map(lambda x: x[layer], params['stack']['layers']['block_0'])
    w = {
      name: x['kernel'] for part in ('mixer', 'feed_forward') for name, x in p[part].items() if 'kernel' in x
    }
    q, k, v = (np.einsum('td,dhc->thc', h, w[letter]) for letter in 'qkv')
    q, k = (rotate(unit(x) * p['mixer'][f'{letter}_norm']['scale']) for letter, x in (('q', q), ('k', k)))
    z = C**0.5 * np.einsum('thc,shc->hts', q, k)
    z = np.exp(np.where(np.tri(T, dtype=bool), z, -np.inf))
    attended = np.einsum('hts,shc->thc', z / z.sum(-1, keepdims=True), v)
    alpha = {name: np.abs(p[f'{name}_rates']['scale']) * D**0.5 * 0.05 for name in ('mixer', 'feed_forward')}
    h = unit(h + alpha['mixer'] * (unit(np.einsum('thc,hcd->td', attended, w['out'])) - h))
    u = h @ w['gate'] * p['feed_forward_gate_scale']['scale']
    nu = h @ w['up'] * p['feed_forward_up_scale']['scale'] * D**0.5
    h = unit(h + alpha['feed_forward'] * (unit((u * nu / (1 + np.exp(-nu))) @ w['down']) - h))
  return (h @ params['output']['kernel'] * params['output_scales']['scale'])[:, :VOCAB]


def lengths(params):
  """Path → the lengths of the vectors of a matrix."""
  found = {}
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    *_, kind, name = path_name(path).split('/')
    kind = name if name == 'table' else kind
    if name in ('kernel', 'table'):
      found[path_name(path)] = np.linalg.norm(x, axis=WIDTH_AXIS[kind] + ('layers' in path_name(path)))
  return found


def test_the_model_is_that_of_the_equations(tiny):
  model = Experiment(tiny(**NGPT)).build_model(VOCAB)
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda x: np.asarray(x + 0.3 * draw.standard_normal(x.shape)), initial(model))
  tokens = draw.integers(0, VOCAB, 9)
  context = Context.contiguous(jnp.asarray(tokens[None]))
  logits, _ = model.apply({'params': jax.tree.map(jnp.float32, params)}, tokens[None], context)
  np.testing.assert_allclose(logits[0], ngpt(params, tokens), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize('fields', [{}, {'optimizer.frozen': 'mixer/q', 'training.gradient_accumulation': 2}])
def test_weights_start_on_the_sphere_and_stay_there(tiny, fields):
  config = tiny(**NGPT | {'optimizer.learning_rate': 0.03} | fields)
  start = initial(Experiment(config).build_model(VOCAB))
  history, state = take_steps(config, 3)
  assert len(lengths(state.params)) == 9 and history[-1]['loss'] < history[0]['loss']
  for params in (start, state.params):
    for name, found in lengths(params).items():
      np.testing.assert_allclose(found, 1, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize('name, factor', [('adam', D**0.5), ('sgd', D)])
def test_scales_of_queries_keys_and_logits_learn_faster(tiny, name, factor):
  """Stored divided by √D, as in the paper, they would move so far."""
  fields = NGPT | {'optimizer.name': name, 'optimizer.learning_rate': 1e-3}
  config, plain = (
    sgd(tiny, **fields | {'model.parametrization': text}) for text in ('unit_weights', 'standard')
  )
  grads = jax.tree.map(jnp.ones_like, initial(Experiment(config).build_model(VOCAB)))
  (ours, _), (theirs, _) = (Experiment(c).build_optimizer() for c in (config, plain))
  step = {}
  for which, optimizer in (('ours', ours), ('theirs', theirs)):
    updates, _ = optimizer.update(grads, optimizer.init(grads), grads)
    step[which] = {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(updates)}
  ratios = {
    path: float(np.mean(x / step['theirs'][path])) for path, x in step['ours'].items() if 'scale' in path
  }
  fast = {path for path in ratios if 'q_norm' in path or 'k_norm' in path or path == 'output_scales/scale'}
  assert len(fast) == 3 and len(ratios) == 7
  assert ratios == {path: pytest.approx(factor if path in fast else 1.0) for path in ratios}


def test_the_mesh_changes_nothing(tiny):
  """Vectors that are divided over devices are brought to length 1 as whole ones."""
  config = tiny(**NGPT | {'optimizer.learning_rate': 0.03})
  (_, alone), (_, shared) = take_steps(config, 2), take_steps(config, 2, mesh=dict(fsdp=4, tensor=2))
  assert_trees_close(shared.params, alone.params, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
  'field, value, words',
  [
    ('model.residual', 'sequential', "use 'spherical'"),
    ('model.mixer', 'softmax', 'qk_norm'),
    ('model.mixer', 'gated(qk_norm="rmsnorm")', 'qk_norm'),
    ('model.feed_forward', 'mixture_of_experts', "use 'swiglu'"),
    ('model.bias', True, 'use False'),
    ('model.output_bias', True, 'set it to False'),
    ('model.canon', 'A', 'has no rule'),
    ('objective', 'multi_token_prediction', "use 'causal_lm'"),
    ('lora.rank', 2, 'no rule for adapters'),
  ],
)
def test_what_has_no_rule_is_refused(tiny, field, value, words):
  with pytest.raises(ValueError, match=rf'^config.*({field}|parametrization).*{words}'):
    Experiment(tiny(**NGPT | {field: value})).build_model(VOCAB)


def test_an_encoder_is_refused(tiny):
  fields = {'model.architecture': 'encoder', 'objective': 'masked_lm', 'data.packing': 'concat'}
  with pytest.raises(ValueError, match=r"^config.model.architecture='encoder' has no rule .* 'decoder'$"):
    Experiment(tiny(**NGPT | fields)).build_model(VOCAB)
