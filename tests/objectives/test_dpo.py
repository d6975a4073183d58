"""Preferences: the loss against numpy, its rows, and a run that learns them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.objectives.test_distillation import built, softmax
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_documents
from tfm.data import pipeline
from tfm.data.sources.protocol import build_source
from tfm.objectives.protocol import Reference
from tfm.runs import load as runs
from tfm.runs import train as training
from tfm.training.metrics import read


pytestmark = pytest.mark.slow
LENGTH = 24


@pytest.fixture(scope='module')
def file(tmp_path_factory):
  """Prompts whose chosen continuation is always a, and the rejected one b; of different lengths."""
  path = tmp_path_factory.mktemp('preferences') / 'pairs.jsonl'
  lines = [
    dict(prompt=f'say {i}: ', chosen='a' * (1 + i % 5), rejected='b' * (1 + i % 7)) for i in range(400)
  ]
  path.write_text('\n'.join(map(json.dumps, lines)), encoding='utf-8')
  return path


@pytest.fixture(scope='module')
def preferences(tiny, file):
  """Makes configs of runs that learn the preferences of the file."""

  def make(reference='reference', **fields):
    source = {'data.source': f'preferences({str(file)!r})', 'data.packing': 'preferences'}
    spec = f'dpo({str(reference)!r}, beta=0.5)'
    return tiny(**{'objective': spec, 'data.length': LENGTH} | source | fields)

  return make


@pytest.fixture(scope='module')
def batch(preferences):
  """Eight prompts, and one row of padding."""
  experiment = Experiment(preferences())
  data = pipeline.open_data(experiment.source, experiment.tokenizer)
  tokens = data.tokens('validation')
  rows = experiment.objective.rows(experiment.packing, tokens, LENGTH, None, data.tokenizer)
  padding = experiment.objective.padding_row(LENGTH)
  return {name: np.stack([rows[i][name] for i in range(8)] + [x]) for name, x in padding.items()}, tokens


def test_a_row_has_both_continuations_after_their_prompt(batch, preferences):
  rows, tokens = batch
  tokenizer = Experiment(preferences()).tokenizer
  for i in range(8):
    for prefix, side in (('', tokens.chosen), ('rejected_', tokens.rejected)):
      valid = rows[f'{prefix}segments'][i] > 0
      targets, answers = rows[f'{prefix}targets'][i][valid], rows[f'{prefix}answers'][i]
      np.testing.assert_array_equal(targets[answers[valid] > 0], side.document(i))
      np.testing.assert_array_equal(targets[answers[valid] == 0], tokens.prompt.document(i)[:-1])
      np.testing.assert_array_equal(rows[f'{prefix}inputs'][i][valid], [tokenizer.bos_id, *targets[:-1]])
      assert not answers[~valid].any()


def test_training_reads_the_pairs_in_a_random_order_each_once_an_epoch(batch, preferences):
  experiment = Experiment(preferences())
  _, tokens = batch
  count = tokens.documents

  def order(seed):
    rows = experiment.packing.rows(tokens, LENGTH, seed)
    return [rows[i]['inputs'].tobytes() for i in range(count)]

  one, other, read = order(0), order(1), experiment.packing.evaluation_rows(tokens, LENGTH)
  assert one != other and sorted(one) == sorted(other)
  assert sorted(one) == sorted(read[i]['inputs'].tobytes() for i in range(count)) and len(read) == count


def test_pairs_longer_than_a_row_are_skipped(batch, preferences, caplog):
  experiment = Experiment(preferences())
  _, tokens = batch
  longest = tokens.sequence_lengths.max()
  rows = experiment.packing.evaluation_rows(tokens, int(longest) - 1)
  assert len(rows) == (tokens.sequence_lengths.max(1) < longest).sum() < tokens.documents
  assert 'pairs are longer than' in caplog.text


def log_probability(model, params, rows, prefix):
  tokens, targets, answers = (rows[f'{prefix}{name}'] for name in ('inputs', 'targets', 'answers'))
  logits = np.asarray(model.apply({'params': params}, *model.arguments(tokens))[0], np.float64)
  chosen = np.take_along_axis(softmax(logits), targets[..., None], -1)[..., 0]
  return (np.log(chosen) * answers).sum(1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('chunk', [0, LENGTH])
def test_the_loss_and_its_gradient(tiny, batch, preferences, chunk):
  fields = {'data.length': LENGTH, 'training.loss_chunk': chunk}
  _, model, params = built(tiny, vocab=257, **fields)
  _, reference, frozen = built(tiny, seed=1, vocab=257, **fields | {'model.layers': 1})
  rows, _ = batch
  objective = Experiment(preferences(**fields)).objective

  def loss(params):
    return objective(model, params, rows, jax.random.key(0), reference=Reference(reference, frozen))

  (total, sums), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  ours = [log_probability(model, params, rows, prefix) for prefix in ('', 'rejected_')]
  theirs = [log_probability(reference, frozen, rows, prefix) for prefix in ('', 'rejected_')]
  rewards = [0.5 * (a - b)[:8] for a, b in zip(ours, theirs)]
  margins = rewards[0] - rewards[1]
  np.testing.assert_allclose(total, np.log1p(np.exp(-margins)).sum(), rtol=1e-4)
  assert sums['tokens'] == 8 and sums['accuracy'] == (margins > 0).sum()
  for name, expected in zip(('chosen_reward', 'rejected_reward'), rewards):
    np.testing.assert_allclose(sums[name], expected.sum(), rtol=1e-4)

  def written_out(params):
    totals = []
    for prefix, constant in zip(('', 'rejected_'), theirs):
      tokens, targets, answers = (rows[f'{prefix}{name}'] for name in ('inputs', 'targets', 'answers'))
      log_p = jax.nn.log_softmax(model.apply({'params': params}, *model.arguments(tokens))[0])
      totals.append((jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0] * answers).sum(1) - constant)
    return jnp.log1p(jnp.exp(-0.5 * (totals[0] - totals[1])))[:8].sum()

  expected = jax.jit(jax.grad(written_out))(params)
  for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


def test_a_model_equal_to_its_reference_has_no_preference(tiny, batch, preferences):
  _, model, params = built(tiny, vocab=257, **{'data.length': LENGTH})
  objective = Experiment(preferences()).objective
  total, sums = objective(model, params, batch[0], None, reference=Reference(model, params))
  np.testing.assert_allclose(total, 8 * np.log(2), rtol=1e-6)
  assert sums['accuracy'] == sums['chosen_reward'] == 0
  assert objective.summarize(dict(loss=6.0, tokens=3), 1) == dict(loss=2.0, tokens=3)


def test_a_run_learns_the_preferences(preferences, tiny, tmp_path):
  training.train(
    tiny(**{'data.length': LENGTH, 'training.steps': 1, 'training.evaluate_every': 1}), str(tmp_path / 'sft')
  )
  config = preferences(
    tmp_path / 'sft',
    **{'init_from': str(tmp_path / 'sft'), 'training.steps': 12, 'training.evaluation_batches': 0},
  )
  training.train(config, str(tmp_path / 'dpo'))
  rows = read(tmp_path / 'dpo' / 'metrics.jsonl')
  train = [row for row in rows if row['split'] == 'train']
  np.testing.assert_allclose(train[0]['loss'], np.log(2), rtol=1e-5)
  assert train[-1]['loss'] < 0.5 and train[-1]['accuracy'] == 1
  validation = [row for row in rows if row['split'] == 'validation'][-1]
  assert validation['accuracy'] == 1 and validation['chosen_reward'] > validation['rejected_reward']
  run = runs.load(str(tmp_path / 'dpo'))
  metrics = runs.evaluate(run, 'validation').metrics
  np.testing.assert_allclose(metrics['chosen_reward'], validation['chosen_reward'], rtol=1e-4)
  (tmp_path / 'sft').rename(tmp_path / 'moved')
  with pytest.raises(ValueError, match=r'config\.objective: .*sft.* holds no run'):
    runs.evaluate(run, 'validation')


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'objective': 'dpo("x", beta=0.0)'}, 'beta=0.0 must be'),
    ({'data.packing': 'padded'}, "packing='padded' does not pack prompts with a chosen"),
    ({'objective': 'causal_lm'}, 'trains on texts, and config.data.source=.*prompt and chosen and rejected'),
  ],
)
def test_what_does_not_fit_is_refused(preferences, fields, message):
  with pytest.raises(ValueError, match=message):
    validate_documents(Experiment(preferences(**fields)))


def test_a_line_without_a_text_is_refused(tmp_path):
  path = tmp_path / 'pairs.jsonl'
  path.write_text('\n{"prompt": "a", "chosen": "b"}\n', encoding='utf-8')
  with pytest.raises(ValueError, match=r"pairs.jsonl:2 has no text under 'rejected' \(it has .*rename"):
    build_source(f'preferences({str(path)!r})').prepare(tmp_path)
