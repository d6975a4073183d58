"""The pure step: accumulation, smoothing, z-loss, chunks, float16, meshes."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.steps import LENGTH, ROWS, VOCAB, assert_trees_close, batch, initial, sgd, take_steps
from tfm.config.assemble import Experiment
from tfm.mixers.protocol import Context
from tfm.parallel import mesh as meshes
from tfm.training import state as states
from tfm.training.gradient_transforms import path_name
from tfm.training.loss_scale import GROWTH_INTERVAL, LossScale
from tfm.training.step import evaluation_step, split_into_microbatches, train_step


@pytest.mark.parametrize('scaled, spikes', [(False, False), (True, False), (False, True)])
def test_a_state_has_what_the_config_asks_for(tiny, scaled, spikes):
  config = tiny()
  model, (optimizer, _) = Experiment(config).build_model(VOCAB), Experiment(config).build_optimizer()
  state = states.abstract_state(states.init(model, optimizer, (1, 8), scaled, spikes=spikes))
  assert (state.loss_scale is not None, state.spikes is not None) == (scaled, spikes)


def test_a_parameter_without_axes_is_refused():
  class Plain(nn.Dense):
    def example(self, batch, length):
      return (jnp.zeros((batch, length)),)

  with pytest.raises(ValueError, match='the parameter bias has no logical axes'):
    states.init_params(Plain(3), jax.random.key(0), 1, 4)


@pytest.fixture(scope='module')
def descent(tiny):
  """A step of plain gradient descent."""
  return take_steps(sgd(tiny))


@pytest.mark.parametrize('parts', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_accumulation_is_the_large_batch(tiny, descent, parts):
  """Rows hold unequal numbers of tokens, so a mean of microbatch means would be wrong."""
  whole, a = descent
  pieces, b = take_steps(sgd(tiny, **{'training.gradient_accumulation': parts}))
  for name in ('loss', 'tokens', 'accuracy', 'gradient_norm'):
    np.testing.assert_allclose(pieces[0][name], whole[0][name], rtol=1e-5)
  assert_trees_close(a.params, b.params, rtol=1e-4, atol=1e-6)


def test_microbatches_partition_the_rows():
  x = jnp.arange(12).reshape(12, 1)
  got = split_into_microbatches(x, 3)
  assert got.shape == (3, 4, 1)
  assert sorted(got.reshape(-1).tolist()) == list(range(12))


@pytest.mark.slow
@pytest.mark.parametrize(
  'chunk, model',
  [
    (100, {}),
    (64, {'model.tie_embeddings': False}),
    *(
      pytest.param(chunk, model, marks=pytest.mark.slow)
      for chunk, model in ((1, {}), (64, {'model.output_soft_cap': 0.01}), (64, {'model.embedding_width': 8}))
    ),
  ],
  ids=str,
)
def test_loss_in_pieces_is_the_loss(tiny, chunk, model):
  fields = {'objective': 'causal_lm(label_smoothing=0.1, z_loss=0.01)', 'model.tie_embeddings': True, **model}
  whole, a = take_steps(sgd(tiny, **fields))
  pieces, b = take_steps(sgd(tiny, **fields, **{'training.loss_chunk': chunk}))
  np.testing.assert_allclose(pieces[0]['loss'], whole[0]['loss'], rtol=1e-6)
  assert_trees_close(a.params, b.params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('chunk', [0, 64])
def test_a_loss_in_pieces_never_has_all_logits(tiny, chunk):
  config = tiny(**{'training.loss_chunk': chunk, 'model.feed_forward_width': 24})
  model, objective = Experiment(config).build_model(VOCAB), Experiment(config).objective
  params = jax.eval_shape(lambda: initial(model))
  jaxpr = jax.make_jaxpr(jax.grad(lambda p: objective(model, p, batch(), None)[0]))(params)
  assert (f'[{ROWS},{LENGTH},{model.rows}]' in str(jaxpr)) == (not chunk)


@pytest.mark.slow
def test_the_loss_is_of_capped_logits(tiny):
  """In pieces as at once, the objective and its gradient are those of numbers that the cap bends."""
  found = {}
  for cap, chunk in ((0.0, 0), (0.01, 0), (0.01, 64)):
    config = tiny(**{'model.output_soft_cap': cap, 'training.loss_chunk': chunk})
    model, objective = Experiment(config).build_model(VOCAB), Experiment(config).objective
    found[cap, chunk] = jax.jit(jax.value_and_grad(lambda p: objective(model, p, batch(), None)[0]))(
      initial(model)
    )
  assert abs(found[0.0, 0][0] - found[0.01, 0][0]) > 1e-3 * found[0.0, 0][0]
  np.testing.assert_allclose(found[0.01, 64][0], found[0.01, 0][0], rtol=1e-5)
  assert_trees_close(found[0.01, 64][1], found[0.01, 0][1], rtol=1e-4, atol=1e-5)


def numpy_objective(logits, batch, smoothing, z):
  """Szegedy et al. 2016, §7, and Chowdhery et al. 2022, §5, token by token."""
  total = tokens = 0
  for row in range(len(logits)):
    for t in range(logits.shape[1]):
      if batch['segments'][row, t]:
        log_z = np.log(np.sum(np.exp(logits[row, t])))
        log_p = logits[row, t] - log_z
        target = np.full(VOCAB, smoothing / VOCAB)
        target[batch['targets'][row, t]] += 1 - smoothing
        total += -(target * log_p).sum() + z * log_z**2
        tokens += 1
  return total / tokens


@pytest.mark.parametrize(
  'smoothing, z',
  [
    (0.0, 0.0),
    *(pytest.param(*both, marks=pytest.mark.slow) for both in ((0.1, 0.0), (0.0, 0.5))),
    (0.3, 0.1),
  ],
)
def test_objective_against_numpy(tiny, smoothing, z):
  config = tiny(objective=f'causal_lm(label_smoothing={smoothing}, z_loss={z})')
  model, objective, rows = Experiment(config).build_model(VOCAB), Experiment(config).objective, batch()
  params = initial(model)

  @jax.jit
  def loss_and_metrics(params):
    return model.apply({'params': params}, rows['inputs'], Context(rows['positions'], rows['segments']))[
      0
    ], objective(model, params, rows, None)

  logits, (total, sums) = loss_and_metrics(params)
  np.testing.assert_allclose(
    total / sums['tokens'], numpy_objective(np.asarray(logits, np.float64), rows, smoothing, z), rtol=1e-5
  )
  np.testing.assert_allclose(
    sums['loss'] / sums['tokens'], numpy_objective(np.asarray(logits, np.float64), rows, 0, 0), rtol=1e-5
  )
  assert sums['tokens'] == (rows['segments'] > 0).sum()


AXES = tuple(meshes.AXES)
# Every axis alone, and every two together; (data=2, fsdp=2, tensor=2) is the default suite's.
MESHES = [{axis: 8} for axis in AXES] + [{a: 2, b: 4} for a, b in itertools.combinations(AXES, 2)]
MESHES += [dict(stage=2, data=2, tensor=2), dict(fsdp=2, expert=2, sequence=2)]
WIDE = {'model.heads': 8, 'model.width': 64, 'model.layers': 8}


@pytest.fixture(scope='module')
def one_device(tiny):
  return take_steps(sgd(tiny, **WIDE))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'mesh',
  [pytest.param(mesh, marks=pytest.mark.slow) for mesh in MESHES] + [dict(data=2, fsdp=2, tensor=2)],
  ids=meshes.format_sizes,
)
def test_every_mesh_gives_the_losses_and_gradients_of_one_device(tiny, one_device, mesh):
  """Those of plain gradient descent are the difference of the parameters."""
  (got,), state = take_steps(sgd(tiny, **WIDE), mesh=mesh)
  (target,), expected = one_device
  for name in ('loss', 'gradient_norm', 'accuracy', 'tokens'):
    np.testing.assert_allclose(got[name], target[name], rtol=2e-6)
  assert_trees_close(state.params, expected.params, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_parameters_and_moments_lie_cut_alike(tiny):
  mesh = dict(stage=2, fsdp=2, tensor=2)
  _, state = take_steps(tiny(**{'model.heads': 8, 'model.width': 64}), mesh=mesh)
  kernel = state.params['stack']['layers']['block_0']['feed_forward']['up']['kernel']
  assert kernel.size == 8 * kernel.addressable_shards[0].data.size  # cut, not copied
  moments = [x for x in jax.tree.leaves(state.opt_state) if x.shape == kernel.shape]
  assert len(moments) == 2 and all(x.sharding == kernel.sharding for x in moments)


def test_indivisible_parameter_is_refused_by_name(tiny):
  with pytest.raises(
    ValueError, match=r"config.mesh.tensor = 8 splits 'kv_heads' of the parameter .*do not divide its size 4"
  ):
    take_steps(tiny(), mesh=dict(data=1, tensor=8))


@pytest.mark.slow
def test_dropout_depends_on_step_and_seed_only(tiny):
  config = tiny(
    **{'model.dropout.residual': 0.5, 'model.dropout.attention': 0.2, 'model.dropout.embedding': 0.1}
  )
  first, _ = take_steps(config, steps=2)
  again, _ = take_steps(config, steps=2)
  other, _ = take_steps(tiny(**{'model.dropout.residual': 0.5, 'seed': 1}), steps=2)
  assert first == again
  assert first[0]['loss'] != other[0]['loss']


def test_every_step_has_its_own_dropout_mask(tiny):
  def losses(rate):
    """Of two steps on one batch, between which no parameter changes."""
    config = sgd(tiny, **{'optimizer.learning_rate': 1e-30, 'model.dropout.residual': rate})
    history, _ = take_steps(config, steps=2, batch=lambda seed: batch())
    return [row['loss'] for row in history]

  same, (first, second) = losses(0.0), losses(0.5)
  assert same[0] == same[1] and first != second


def test_every_microbatch_has_its_own_key(tiny):
  def objective(model, params, batch, key):
    draw = jax.random.uniform(key)
    return params['x'] * 0, dict(tokens=jnp.float32(1), draw=draw, square=draw**2)

  experiment, params = Experiment(sgd(tiny)), dict(x=jnp.float32(1))
  moments = experiment.optimizer.init(params)
  state = states.State(jnp.int32(0), params, moments, jnp.zeros(2, jnp.uint32), None)
  step = train_step(None, objective, experiment.optimizer, experiment.learning_rate, accumulation=4)
  metrics = step(state, batch())[1]
  variance = metrics['square'] - metrics['draw'] ** 2
  assert variance > 1e-3


def test_float16_updates_are_those_of_float32(tiny, descent):
  """The scale of the loss is divided out: plain gradient descent would show it in the update."""
  history, half = take_steps(sgd(tiny, **{'model.dtype': 'float16'}), scale=64.0)
  expected, whole = descent
  assert not history[0]['skipped']
  np.testing.assert_allclose(history[0]['gradient_norm'], expected[0]['gradient_norm'], rtol=5e-3)
  assert_trees_close(half.params, whole.params, rtol=0, atol=2e-2 * expected[0]['gradient_norm'])


def test_evaluation_has_no_dropout(tiny):
  def sums(rate):
    config = tiny(**{f'model.dropout.{place}': rate for place in ('residual', 'attention', 'embedding')})
    model = Experiment(config).build_model(VOCAB)
    return jax.jit(evaluation_step(model, Experiment(config).objective))(initial(model), batch())

  jax.tree.map(np.testing.assert_array_equal, sums(0.9), sums(0.0))


@pytest.mark.slow
def test_float16_scales_skips_and_recovers(tiny):
  config = tiny(**{'model.dtype': 'float16'})
  history, state = take_steps(config, steps=3)
  assert all(np.isfinite(row['loss']) for row in history)
  reference, _ = take_steps(tiny(), steps=3)
  if not any(row['skipped'] for row in history):
    np.testing.assert_allclose([r['loss'] for r in history], [r['loss'] for r in reference], rtol=2e-3)


@pytest.mark.slow
def test_overflow_skips_the_update_and_halves_the_scale(tiny):
  """A scale beyond float16's range makes every gradient overflow."""
  config = tiny(**{'model.dtype': 'float16'})
  model, objective, (optimizer, rate) = (
    Experiment(config).build_model(VOCAB),
    Experiment(config).objective,
    Experiment(config).build_optimizer(),
  )
  state = nn.unbox(states.init(model, optimizer, (ROWS, LENGTH), True)(jax.random.key(0)))
  state = state.replace(loss_scale=LossScale(jnp.float32(2.0**40), jnp.int32(5)))
  after, metrics = jax.jit(train_step(model, objective, optimizer, rate, 1))(state, batch())
  assert metrics['skipped'] == 1 and after.step == 1
  assert after.loss_scale.scale == 2.0**39 and after.loss_scale.good_steps == 0
  assert_trees_close(after.params, state.params, 0, 0)
  assert_trees_close(after.opt_state, state.opt_state, 0, 0)


def test_scale_grows_after_good_steps():
  scale = LossScale(jnp.float32(8), jnp.int32(GROWTH_INTERVAL - 1)).update(jnp.array(True))
  assert scale.scale == 16 and scale.good_steps == 0
  assert scale.update(jnp.array(True)).scale == 16


@pytest.mark.parametrize('dtype', ['bfloat16', pytest.param('float32', marks=pytest.mark.slow)])
def test_parameters_and_losses_stay_in_float32(tiny, dtype):
  history, state = take_steps(tiny(**{'model.dtype': dtype}))
  assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype('float32')}
  assert history[0]['loss'] == pytest.approx(np.log(VOCAB), rel=0.05)


@pytest.mark.parametrize('name', ['adafactor(min_dim_size_to_factor=16)', 'lion', 'sgd(momentum=0.9)'])
@pytest.mark.slow
def test_every_optimizer_trains_on_a_mesh(tiny, name):
  """Factored moments have other axes than their parameters."""
  config = tiny(**{'optimizer.name': name})
  one, _ = take_steps(config, steps=2)
  many, _ = take_steps(config, steps=2, mesh=dict(data=2, fsdp=2, tensor=2))
  np.testing.assert_allclose([r['loss'] for r in many], [r['loss'] for r in one], rtol=1e-5)


@pytest.mark.parametrize(
  'mesh', [pytest.param(None, marks=pytest.mark.slow), dict(fsdp=2, tensor=4)], ids=['one device', 'a mesh']
)
def test_what_is_frozen_stays_and_the_rest_moves_as_ever(tiny, descent, mesh):
  """On a mesh too: its state holds nothing of what is frozen."""
  _, plain = descent
  _, before = take_steps(sgd(tiny), steps=0)
  _, after = take_steps(sgd(tiny, **{'optimizer.frozen': r'^(?!norm/|stack/.*/out/)'}), mesh=mesh)
  for path, x in jax.tree_util.tree_leaves_with_path(after.params):
    name = path_name(path)
    was, moved = (
      functools.reduce(lambda tree, key: tree[key.key], path, tree) for tree in (before.params, plain.params)
    )
    if name.startswith('norm/') or '/out/' in name:
      np.testing.assert_allclose(x, moved, rtol=1e-4, atol=1e-6)
      assert np.abs(np.asarray(x) - np.asarray(was)).max() > 1e-5, name
    else:
      np.testing.assert_array_equal(x, was, name)


def test_of_what_is_frozen_no_gradient_is_computed(tiny):
  """XLA's own count of the step's work."""

  def flops(**fields):
    config = sgd(tiny, **fields)
    model, (optimizer, rate) = Experiment(config).build_model(VOCAB), Experiment(config).build_optimizer()
    state = nn.unbox(jax.eval_shape(states.init(model, optimizer, (ROWS, LENGTH), False), jax.random.key(0)))
    step = jax.jit(train_step(model, Experiment(config).objective, optimizer, rate, 1))
    return step.lower(state, batch()).compile().cost_analysis()['flops']

  fields = {'model.scan': False}  # XLA counts the body of a scan once
  assert flops(**fields, **{'optimizer.frozen': '^(?!norm/)'}) < 0.6 * flops(**fields)
