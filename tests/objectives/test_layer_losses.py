"""The layer losses of DistilBERT and TinyBERT: their formulas on captured activations, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.objectives.test_distillation import built, random_batch
from tfm.config.assemble import Experiment
from tfm.decoding.unroll_layers import unroll_layers
from tfm.models.block import Block
from tfm.objectives._layer_losses import LAYER_LOSSES, Layers
from tfm.objectives.protocol import Reference


pytestmark = pytest.mark.slow
TOKENS = np.arange(32)[None] < np.array([[5], [32], [0], [20]])
WEIGHTS = dict(cosine_loss=0.5, hidden_loss=2.0, attention_loss=3.0)
ALL = 'cosine=0.5, hidden=2.0, attention=3.0'


def student_and_teacher(tiny, arguments=ALL, hard='causal_lm', student={}, teacher={}, **fields):
  """(objective, (model, parameters) of the student, those of the teacher, a batch)."""
  spec = f'distillation("teacher", alpha=0.0, objective={hard!r}, {arguments})'
  own, taught = (
    {f'model.{name}': x for name, x in (dict(position='learned') | fields | of_one).items()}
    for of_one in (student, teacher)
  )
  experiment, *student = built(tiny, objective=spec, **own)
  _, *teacher = built(tiny, seed=1, objective=spec, **taught)
  # Small enough that the embedded tokens have a part in the sum over layers.
  student, teacher = ((model, jax.tree.map(lambda x: x / 10, params)) for model, params in (student, teacher))
  batch = random_batch(experiment.objective) | dict(segments=TOKENS.astype(np.int32))
  return experiment.objective, student, teacher, batch


def compute(objective, student, teacher, batch):
  """((loss, sums), its gradients with respect to the parameters of the student and of the teacher)."""

  @jax.jit
  def run(params, frozen):
    reference, key = Reference(teacher[0], frozen), jax.random.key(0)
    return objective(student[0], params, batch, key, reference=reference)

  return jax.jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True))(student[1], teacher[1])


def capture(model, params, batch):
  """(last hidden states, hidden states from the embedded tokens on, attention logits of each layer)."""
  model, params = unroll_layers(model, params)
  context = model.arguments(batch['inputs'])[1].replace(segments=batch['segments'])
  _, found = model.apply(
    {'params': params},
    batch['inputs'],
    context,
    method='features',
    capture_intermediates=lambda module, _: isinstance(module, Block) or module.name in ('q', 'k', 'norm'),
    mutable=['intermediates'],
  )
  found = jax.tree.map(np.asarray, found['intermediates'])
  blocks = [found['stack'][f'layers_{i}']['block_0'] for i in range(model.stack().layers)]
  embedded = params['embedding']['table'][batch['inputs']] + params['position_0']['table'][None]
  q, k = ([block['mixer'][x]['__call__'][0] for block in blocks] for x in 'qk')
  logits = [np.einsum('bthc,bshc->bhts', a, b) / np.sqrt(a.shape[-1]) for a, b in zip(q, k)]
  hidden = [np.asarray(embedded), *(block['__call__'][0][0] for block in blocks)]
  return found['norm']['__call__'][0], hidden, logits


def test_the_losses_are_those_of_the_papers(tiny):
  objective, *models, batch = student_and_teacher(tiny, teacher=dict(layers=4))
  (total, sums), (_, of_teacher) = compute(objective, *models, batch)
  (last, hidden, logits), (taught_last, taught_hidden, taught_logits) = (
    capture(*model, batch) for model in models
  )
  norms = np.linalg.norm(last, axis=-1) * np.linalg.norm(taught_last, axis=-1)
  cosine = (last * taught_last).sum(-1) / norms
  squares = [(a - taught_hidden[i]) ** 2 for a, i in zip(hidden, (0, 2, 4), strict=True)]
  sees = TOKENS[:, :, None] & TOKENS[:, None] & np.tri(32, dtype=bool)
  errors = [(a - taught_logits[i]) ** 2 for a, i in zip(logits, (1, 3), strict=True)]
  expected = dict(
    cosine_loss=(1 - cosine[TOKENS]).mean(),
    hidden_loss=sum(x[TOKENS].mean() for x in squares),
    attention_loss=sum(x.swapaxes(0, 1)[:, sees].mean() for x in errors),
  )
  for name, value in expected.items():
    np.testing.assert_allclose(sums[name] / TOKENS.sum(), value, rtol=2e-4, err_msg=name)
  added = sum(weight * sums[name] for name, weight in WEIGHTS.items())
  np.testing.assert_allclose(total, sums['loss'] + added, rtol=1e-5)
  assert not any(np.asarray(x).any() for x in jax.tree.leaves(of_teacher))


def test_a_narrow_student_is_projected_to_its_teacher(tiny):
  arguments = 'cosine=0.5, hidden=2.0, projection=48'
  objective, *models, batch = student_and_teacher(tiny, arguments, teacher=dict(width=48))
  (_, sums), (gradient, _) = compute(objective, *models, batch)
  (last, hidden, _), (taught_last, taught_hidden, _) = (capture(*model, batch) for model in models)
  layer = models[0][1]['taught_projection']
  last, *hidden = (x @ np.asarray(layer['kernel']) + np.asarray(layer['bias']) for x in (last, *hidden))
  norms = np.linalg.norm(last, axis=-1) * np.linalg.norm(taught_last, axis=-1)
  expected = dict(
    cosine_loss=(1 - ((last * taught_last).sum(-1) / norms)[TOKENS]).mean(),
    hidden_loss=sum(((a - b) ** 2)[TOKENS].mean() for a, b in zip(hidden, taught_hidden, strict=True)),
  )
  for name, value in expected.items():
    np.testing.assert_allclose(sums[name] / TOKENS.sum(), value, rtol=2e-4, err_msg=name)
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradient['taught_projection']))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'hard, fields',
  [
    ('causal_lm', dict(mixer='longformer(2)', mask='causal & window(4)')),
    ('masked_lm', dict(architecture='encoder', norm_placement='post')),
  ],
)
def test_a_teacher_equal_to_the_student_adds_nothing(tiny, hard, fields):
  objective, student, _, batch = student_and_teacher(tiny, hard=hard, **fields)
  (_, sums), (gradient, _) = compute(objective, student, student, batch)
  for name in WEIGHTS:
    np.testing.assert_allclose(sums[name] / sums['tokens'], 0, atol=1e-6, err_msg=name)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_dropout_is_of_the_student_alone(tiny):
  objective, student, teacher, batch = student_and_teacher(tiny, 'hidden=1.0')
  _, dropped, _, _ = student_and_teacher(tiny, student={'dropout.residual': 0.5})

  def loss(student, teacher):
    return compute(objective, (student, teacher[1]), (teacher[0], teacher[1]), batch)[0][1]['hidden_loss']

  # Training computes norms in another order than evaluation: squares of roundings remain.
  assert loss(teacher[0], (dropped[0], teacher[1])) < 1e-12 and loss(dropped[0], teacher) > 1e-3


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'fields', [dict(remat='full'), dict(residual='hyper_connections(2)'), dict(value_residual='gated')], ids=str
)
def test_scan_changes_nothing(tiny, fields):
  objective, student, teacher, batch = student_and_teacher(tiny, **fields)
  (_, expected), _ = compute(objective, student, teacher, batch)
  (_, sums), _ = compute(objective, unroll_layers(*student), unroll_layers(*teacher), batch)
  for name in WEIGHTS:
    assert sums[name] > 0
    np.testing.assert_allclose(sums[name], expected[name], rtol=1e-4, err_msg=name)


def layers(count, width=8, heads=2):
  x, logits = jnp.zeros((1, 4, width)), jnp.zeros((1, heads, 4, 4))
  return Layers(x, x, [x] * count, [logits] * count)


@pytest.mark.parametrize(
  'name, teacher, message',
  [
    ('cosine', layers(2, width=4), 'cosine .* width of the student is 8 and that of the teacher 4; use'),
    ('hidden', layers(2, width=4), 'hidden .* width of the student is 8 and that of the teacher 4; use'),
    ('hidden', layers(3), "hidden .* 2 does not divide the teacher's 3 layers; use a divisor"),
    ('attention', layers(1), "attention .* 2 does not divide the teacher's 1 layers; use a divisor"),
    ('attention', layers(2, heads=1), 'attention compares heads, .* student has 2 and the teacher 1'),
    (
      'attention',
      layers(2).replace(logits=[None] * 2),
      'mixer of layer 0 of the student or of the teacher has none',
    ),
  ],
)
def test_a_teacher_whose_layers_do_not_correspond_is_refused(name, teacher, message):
  with pytest.raises(ValueError, match=message):
    LAYER_LOSSES[name][1](layers(2), teacher, jnp.ones((1, 4), bool))


def test_a_mixer_without_attention_is_refused(tiny):
  objective, student, teacher, batch = student_and_teacher(
    tiny, 'attention=1.0', layers=1, teacher=dict(mixer='linear')
  )
  with pytest.raises(ValueError, match='attention compares attention logits, and the mixer of layer 0'):
    jax.eval_shape(lambda: compute(objective, student, teacher, batch))


@pytest.mark.parametrize(
  'arguments, message',
  [
    ('hidden=-1.0', 'hidden=-1.0 must be'),
    ('attention=1.0, projection=8', 'projection=8 has no effect without cosine and hidden'),
    (
      'cosine=1.0, objective="seq2seq"',
      'cosine=1.0 compares the layers of one stack, .* trains two; set it to',
    ),
  ],
)
def test_invalid_arguments_are_refused(tiny, arguments, message):
  with pytest.raises(ValueError, match=message):
    Experiment(tiny(objective=f'distillation("x", {arguments})')).objective
