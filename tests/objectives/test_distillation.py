"""Distillation: its formula, its gradient, and what it shares with the objective of the hard loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers import test_chunked_cross_entropy as chunks
from tfm.config.assemble import Experiment
from tfm.layers.cross_entropy import WHOLE_VOCABULARY, VocabShard, mask_padding
from tfm.objectives.distillation import softened_divergence
from tfm.objectives.protocol import Reference, sum_token_losses
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states


pytestmark = pytest.mark.slow
VOCAB = 50
TEACHER = dict(layers=3, width=16, heads=2)


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def divergence(student, teacher, temperature):
  """T² · Σ p log(p / q), of logits in numpy."""
  q, p = softmax(student / temperature), softmax(teacher / temperature)
  return temperature**2 * (p * np.log(p / q)).sum(-1)


@pytest.mark.parametrize('temperature', [0.5, 1.0, 4.0])
def test_the_divergence_and_its_gradient(temperature):
  draw = np.random.default_rng(0)
  student, teacher = (2 * draw.standard_normal((2, 3, VOCAB)) for _ in range(2))

  def total(x):
    return softened_divergence(WHOLE_VOCABULARY, temperature, x, jnp.asarray(teacher, jnp.float32)).sum()

  x = jnp.asarray(student, jnp.float32)
  np.testing.assert_allclose(total(x), divergence(student, teacher, temperature).sum(), rtol=1e-5)
  # of T² KL(p ‖ q) with respect to the logits of q
  expected = temperature * (softmax(student / temperature) - softmax(teacher / temperature))
  np.testing.assert_allclose(jax.grad(total)(x), expected, atol=1e-5)


def test_padding_of_the_vocabulary_has_no_part():
  draw = np.random.default_rng(1)
  student, teacher = (draw.standard_normal((1, 2, VOCAB + 6)) for _ in range(2))
  columns = VocabShard((), VOCAB)

  def of_padded(*logits):
    return softened_divergence(columns, 2.0, *(mask_padding(columns, x) for x in logits))

  args = [jnp.asarray(x, jnp.float32) for x in (student, teacher)]
  expected = divergence(student[..., :VOCAB], teacher[..., :VOCAB], 2.0)
  np.testing.assert_allclose(of_padded(*args), expected, rtol=1e-5)
  gradient = jax.grad(lambda x: of_padded(x, args[1]).sum())(args[0])
  assert not np.asarray(gradient)[..., VOCAB:].any()


def built(tiny, seed=0, vocab=VOCAB, **fields):
  """(experiment, model, parameters) of a tiny run."""
  experiment = Experiment(tiny(**fields))
  model = experiment.build_model(vocab)
  length = experiment.config.data.length
  params = jax.jit(lambda key: states.nn.unbox(states.init_params(model, key, 1, length)))(
    jax.random.key(seed)
  )
  return experiment, model, jax.tree.map(lambda x: 20 * x if x.ndim > 1 else x, params)


def random_batch(objective, length=32, rows=4):
  draw = np.random.default_rng(2)
  batch = {name: np.stack([x] * rows) for name, x in objective.padding_row(length).items()}
  for name, x in batch.items():
    if name in ('inputs', 'targets', 'source'):
      batch[name] = draw.integers(1, VOCAB, x.shape).astype(np.int32)
    elif name.endswith('positions') or name == 'places':
      batch[name] = np.broadcast_to(np.arange(x.shape[1], dtype=np.int32), x.shape)
    elif name in ('segments', 'source_segments', 'counted', 'answers'):
      batch[name] = np.ones_like(x)
  return batch


KINDS = {
  'causal_lm': {},
  'causal_lm(label_smoothing=0.1)': {'training.loss_chunk': 32},
  'prefix_lm': {'model.mask': 'causal | prefix', 'data.packing': 'first_fit'},
  'answers': {'data.source': 'copy', 'data.packing': 'answered'},
  'masked_lm': {'model.architecture': 'encoder'},
  'seq2seq': {
    'model.architecture': 'encoder_decoder',
    'data.source': "numbers('en', 'de')",
    'data.packing': 'padded',
  },
}


@pytest.mark.sampled(0)
@pytest.mark.parametrize('kind', KINDS)
def test_a_teacher_equal_to_the_student_leaves_the_hard_loss(tiny, kind):
  fields = dict(KINDS[kind])
  spec = f'distillation("teacher", alpha=0.25, temperature=3, objective={kind!r})'
  experiment, model, params = built(tiny, objective=spec, **fields)
  hard = Experiment(tiny(objective=kind, **fields)).objective
  batch, key = random_batch(hard), jax.random.key(3)

  def loss(objective, **reference):
    return jax.value_and_grad(lambda p: objective(model, p, batch, key, **reference), has_aux=True)(params)

  (total, sums), gradient = loss(experiment.objective, reference=Reference(model, params))
  (expected, expected_sums), expected_gradient = loss(hard)
  assert set(sums) == {*expected_sums, 'distillation'}
  np.testing.assert_allclose(sums['distillation'] / sums['tokens'], 0, atol=1e-5)
  np.testing.assert_allclose(total, 0.75 * expected, rtol=1e-5)
  for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
    # What the soft loss adds is T (q - p) of every token: rounding alone, a few units in the last place.
    np.testing.assert_allclose(a, 0.75 * b, rtol=1e-4, atol=5e-5 * max(1e-3, np.abs(b).max()))
  evaluated, expected = (
    objective(model, params, batch, None)[1] for objective in (experiment.objective, hard)
  )
  assert jax.tree.map(float, evaluated) == jax.tree.map(float, expected)


def test_the_loss_mixes_both_by_alpha(tiny):
  spec = 'distillation("teacher", alpha={}, temperature=2)'
  _, model, params = built(tiny)
  _, teacher, frozen = built(tiny, seed=1, **{f'model.{name}': x for name, x in TEACHER.items()})
  batch = random_batch(Experiment(tiny()).objective)
  batch['segments'] = np.where(np.arange(32)[None] < [[5], [32], [0], [20]], 1, 0).astype(np.int32)
  logits, taught = (
    np.asarray(m.apply({'params': p}, *m.arguments(batch['inputs']))[0])
    for m, p in ((model, params), (teacher, frozen))
  )
  counts = batch['segments'] > 0
  soft = (divergence(logits, taught, 2) * counts).sum()
  hard = (
    -np.log(np.take_along_axis(softmax(logits), batch['targets'][..., None], -1))[..., 0] * counts
  ).sum()
  for alpha in (0, 0.3, 1):
    objective = Experiment(tiny(objective=spec.format(alpha))).objective
    total, sums = objective(model, params, batch, jax.random.key(0), reference=Reference(teacher, frozen))
    np.testing.assert_allclose(total, alpha * soft + (1 - alpha) * hard, rtol=1e-4)
    np.testing.assert_allclose([sums['distillation'], sums['loss']], [soft, hard], rtol=1e-4)


def test_the_teacher_has_no_gradient(tiny):
  experiment, model, params = built(tiny, objective='distillation("teacher")')
  _, teacher, frozen = built(tiny, seed=1)
  batch = random_batch(experiment.objective)

  def loss(frozen):
    return experiment.objective(
      model, params, batch, jax.random.key(0), reference=Reference(teacher, frozen)
    )[0]

  assert not any(np.asarray(x).any() for x in jax.tree.leaves(jax.grad(loss)(frozen)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'mesh, chunk', [(None, 32), (dict(data=2, fsdp=2, tensor=2), 0), (dict(sequence=2, tensor=4), 32)], ids=str
)
def test_chunks_and_meshes_change_nothing(tiny, mesh, chunk):
  fields = {'model.vocab_multiple': 64, 'model.heads': 8, 'data.length': chunks.T}
  fields['objective'] = 'distillation("teacher", alpha=0.5)'
  experiment, model, params = built(tiny, **fields)
  _, teacher, frozen = built(tiny, seed=1, **fields | {'model.layers': 1})
  features = jnp.asarray(
    np.random.default_rng(3).standard_normal((2, chunks.B, chunks.T, chunks.D)), jnp.float32
  )

  def loss(params, frozen, student, taught, chunk):
    models = [(model, params, student), (teacher, frozen, taught)]
    return sum_token_losses(experiment.objective.sum_tokens, models, chunks.TARGETS, chunks.WEIGHTS, chunk)

  def run(chunk, *args):
    gradient = jax.value_and_grad(functools.partial(loss, chunk=chunk), argnums=(0, 2), has_aux=True)
    return jax.jit(gradient)(*args)

  args = params, frozen, *features
  expected = run(0, *args)
  if mesh is None:
    chunks.assert_equal(run(chunk, *args), expected)
    return
  mesh, rules = meshes.make(mesh), experiment.rules
  boxed = [
    jax.eval_shape(lambda key: states.init_params(m, key, 1, chunks.T), jax.random.key(0))
    for m in (model, teacher)
  ]
  where = (
    *(sharding.named_shardings(one, mesh, rules) for one in boxed),
    *[sharding.batch_sharding(mesh, rules)] * 2,
  )
  with sharding.context(mesh, rules):
    chunks.assert_equal(run(chunk, *jax.device_put(args, where)), expected)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('distillation("x", temperature=0.0)', 'temperature=0.0 must be'),
    ('distillation("x", alpha=1.5)', 'alpha=1.5 must be'),
    (
      'distillation("x", objective="classification(classes=3)")',
      "objective='classification.*does not predict tokens",
    ),
    (
      'distillation("x", objective="multi_token_prediction")',
      "objective='multi_token_prediction' predicts further tokens, which the teacher does not",
    ),
    ('distillation("x", objective="causal")', "objective='distillation.*'causal'"),
  ],
)
def test_invalid_arguments_are_refused(tiny, spec, message):
  with pytest.raises(ValueError, match=message):
    Experiment(tiny(objective=spec)).objective
