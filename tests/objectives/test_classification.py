"""Classification: learns from rows of every kind, with the metrics of scikit-learn."""

import csv
import json
import math
import pathlib
import types

import flax.linen as nn
import jax
import numpy as np
import pytest
from sklearn import metrics

from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.data import pipeline
from tfm.mixers.protocol import Context
from tfm.objectives.classification import Classification
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.runs import load as runs
from tfm.runs.measure_split import build_evaluate_fn
from tfm.runs.train import train
from tfm.training import state as states


def config(**fields):
  """A complete config of a classifier that takes a second to train, by dotted paths."""
  run_config = complete(
    dict(
      data=dict(length=32, packing='each'),
      model=dict(
        architecture='encoder',
        layers=1,
        width=32,
        heads=2,
        initializer='lecun_normal',
        embedding_initializer='normal(1.0)',
      ),
      optimizer=dict(warmup=2, learning_rate=3e-3),
      training=dict(steps=6, batch_size=16, gradient_accumulation=2, evaluate_every=6),
    )
  )
  for path, value in fields.items():
    assign(run_config, path, value)
  return resolve_config(run_config)


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  path = tmp_path_factory.mktemp('texts') / 'a.tsv'
  path.write_text(''.join(f'{"abc"[i % 3]}\t{"xyz"[i % 3] * (i % 7)} {i}\n' for i in range(400)))
  return f'labelled({str(path)!r})'


@pytest.fixture(scope='module')
def words(tmp_path_factory):
  path = tmp_path_factory.mktemp('words') / 'a.conll'
  path.write_text('\n'.join(f'the DET\nw{i} NOUN\nruns{"." * (i % 3)} VERB\n' for i in range(400)))
  return f'tagged({str(path)!r})'


def predict(config, model, params, data, split):
  """Returns (true, predicted) classes of a whole split, from the rows and the model alone."""
  rows = Experiment(config).packing.evaluation_rows(data.tokens(split), config.data.length)
  [batch] = pipeline.evaluation_batches(rows, len(rows) + 3)
  logits = jax.jit(model.apply)(
    {'params': params},
    batch.get('image', batch.get('inputs')),
    Context(batch['positions'], batch['segments']),
  )[0]['classification']
  there = batch['classes'] >= 0
  return batch['classes'][there], np.asarray(logits).argmax(-1)[there]


def check_metrics(values, true, predictions):
  """Compares the metrics of a split with scikit-learn's."""
  assert values['tokens'] == len(true) and len(set(predictions)) > 1
  assert values['accuracy'] == pytest.approx(metrics.accuracy_score(true, predictions))
  assert values['f1'] == pytest.approx(metrics.f1_score(true, predictions, average='macro'))


@pytest.mark.parametrize(
  'objective, kind', [('classification(3)', 'texts'), ('classification(3, words=True)', 'words')]
)
def test_accuracy_and_f1_are_those_of_scikit_learn(objective, kind, request, tmp_path):
  run_config = config(**{'objective': objective, 'data.source': request.getfixturevalue(kind)})
  data = pipeline.open_data(Experiment(run_config).source, Experiment(run_config).tokenizer, tmp_path)
  model = runs.build_model(Experiment(run_config), data.tokenizer, None)
  params = nn.unbox(
    jax.jit(lambda key: states.init_params(model, key, 1, run_config.data.length))(jax.random.key(0))
  )
  mesh = meshes.make(dict(data=-1))
  with sharding.context(mesh, sharding.parse_rules(run_config.rules)):
    where = sharding.batch_sharding(mesh, sharding.parse_rules(run_config.rules))
    values = build_evaluate_fn(Experiment(run_config), model, data, where, 'test', 0)(params)
  check_metrics(values, *predict(run_config, model, params, data, 'test'))


FIELDS = dict(chunk=0, layout='contiguous', recurrence=0)


class GivenLogits(nn.Module):
  """A model whose parameters are its logits."""

  def features(self, inputs, context):
    return inputs

  def classify(self, name, features, context):
    return self.get_variable('params', 'logits')


@pytest.mark.parametrize('kind', ['texts', 'words', 'images'])
@pytest.mark.parametrize('smoothing', [0.0, 0.2])
def test_loss(kind, smoothing):
  """By hand; some items have no class, one class is only predicted, and one does not occur."""
  classes, draw = 5, np.random.default_rng(0)
  true = np.array([0, 1, -1, 2, 0, 1]).reshape((3, 2) if kind == 'words' else 6)
  logits = draw.normal(0, 1, (*true.shape, classes)).astype(np.float32)
  logits[..., 4] -= 9
  logits[0, ..., 3] += 9
  fields = dict(words=kind == 'words', shape=(1, 1, 1) if kind == 'images' else ())
  objective = Classification(**FIELDS, classes=classes, label_smoothing=smoothing, **fields)
  inputs = 'image' if kind == 'images' else 'inputs'
  batch = {field: np.ones(true.shape, np.int32) for field in (inputs, 'positions', 'segments')}
  batch |= dict(classes=true)
  total, sums = objective(GivenLogits(), {'logits': logits}, batch, None)
  # In training, sums for a mean over microbatches.
  _, trained = objective(GivenLogits(), {'logits': logits}, batch, jax.random.key(0))
  logits, true = logits.astype(np.float64)[true >= 0], true[true >= 0]
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  loss = -log_p[np.arange(len(true)), true]
  smoothed = (1 - smoothing) * loss - smoothing * log_p.mean(-1)
  np.testing.assert_allclose(total, smoothed.sum(), rtol=1e-5)
  values = objective.summarize({name: np.asarray(x) for name, x in sums.items()}, 0)
  check_metrics(values, true, logits.argmax(-1))
  assert values['loss'] == pytest.approx(loss.mean(), rel=1e-5) and set(values) == {
    'loss', 'accuracy', 'f1', 'tokens',
  }  # fmt: skip
  assert set(trained) == {'loss', 'accuracy', 'tokens'}
  assert float(trained['accuracy'] / trained['tokens']) == pytest.approx(values['accuracy'])


def test_a_split_without_classes_has_metrics():
  objective = Classification(**FIELDS, classes=2)
  total = dict(loss=np.float32(0), tokens=np.float32(0), confusion_matrix=np.zeros((2, 2)))
  assert objective.summarize(total, 0) == dict(loss=0, accuracy=0, f1=0, tokens=0)
  total = dict(loss=np.float32(0.5), tokens=np.float32(1), confusion_matrix=np.diag([1.0, 0.0]))
  assert objective.summarize(total, 0) == dict(loss=0.5, accuracy=1, f1=1, tokens=1)


@pytest.mark.parametrize(
  'fields, shapes',
  [
    (dict(), dict(inputs=(7,), classes=())),
    (dict(words=True), dict(inputs=(7,), classes=(7,))),
    (dict(shape=(4, 6, 3)), dict(image=(4, 6, 3), classes=())),
  ],
)
def test_padding_has_no_class(fields, shapes):
  row = Classification(**FIELDS, classes=3, **fields).padding_row(7)
  assert {name: x.shape for name, x in row.items()} == shapes | dict(positions=(7,), segments=(7,))
  assert all(x.dtype == (np.float32 if name == 'image' else np.int32) for name, x in row.items())
  assert (row.pop('classes') == -1).all() and not any(x.any() for x in row.values())


@pytest.mark.parametrize('pooling', ['mean', 'first'])
def test_padding_is_not_pooled(pooling):
  """Padding does not change the logits of a text, nor those of a row with more padding than text."""
  run_config = config(
    **{
      'objective': 'classification(3)',
      'data.source': "labelled('a')",
      'model.pooling': pooling,
      'model.scan': False,
    }
  )
  model = Experiment(run_config).build_model(257)
  params = nn.unbox(jax.jit(lambda key: states.init_params(model, key, 1, 32))(jax.random.key(0)))
  text = np.arange(65, 75, dtype=np.int32)[None]

  def logits(padding):
    rows = np.pad(np.stack([text, np.arange(10)[None], np.ones_like(text)]), ((0, 0), (0, 0), (0, padding)))
    return model.apply({'params': params}, rows[0], Context(rows[1], rows[2]))[0]['classification']

  np.testing.assert_allclose(
    jax.jit(logits, static_argnums=0)(22), jax.jit(logits, static_argnums=0)(0), rtol=1e-5, atol=1e-5
  )


class RowArguments:
  """A packing whose rows are the arguments that it received."""

  def rows(self, tokens, length, seed):
    return tokens.name, length, seed

  def evaluation_rows(self, tokens, length):
    return tokens.name, length


def test_rows_of_training_depend_on_the_seed():
  objective, tokens = Classification(**FIELDS, classes=2), types.SimpleNamespace(name='data', names='ab')
  assert objective.rows(RowArguments(), tokens, 7, 3, None) == ('data', 7, 3)
  assert objective.rows(RowArguments(), tokens, 7, None, None) == ('data', 7)


@pytest.mark.parametrize(
  'names, shown',
  [('abcdefghij', 'a, b, c, d, e, f, g, h, i, j;'), ('abcdefghijk', 'a, b, c, d, e, f, g, h, i, j, …;')],
)
def test_of_many_classes_ten_are_named(names, shown):
  tokens = types.SimpleNamespace(name='data', names=names)
  with pytest.raises(ValueError, match=f'data has {len(names)}: {shown} use classes={len(names)}'):
    Classification(**FIELDS, classes=2).rows(RowArguments(), tokens, 7, 0, None)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(classes=1), 'classes=1 must be at least 2'),
    (dict(classes=2, label_smoothing=1.0), r'label_smoothing=1.0 must lie in \[0, 1\)'),
  ],
)
def test_invalid_fields_are_rejected(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    Classification(**FIELDS, **fields)


def test_another_number_of_classes_is_rejected(texts, tmp_path):
  with pytest.raises(
    ValueError, match=r'config.objective has classes=2, but labelled.* train has 3: a, b, c; use classes=3'
  ):
    train(config(**{'objective': 'classification(2)', 'data.source': texts}), tmp_path)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      {'data.source': 'stdlib'},
      r"trains on texts with a label.*data.source='stdlib' has text; use a source such as .labelled",
    ),
    (
      {'data.source': "labelled('a')", 'data.packing': 'concat'},
      "packing='concat' does not pack texts with a label; use a packing such as 'each'",
    ),
    (
      {'data.source': "labelled('a')", 'objective': 'classification(2, words=True)'},
      'trains on texts with a label for each word, .* has text and label; use a source such as "tagged',
    ),
    (
      {'data.source': "labelled('a')", 'model.architecture': 'decoder'},
      "trains 'encoder', not config.model.architecture='decoder'",
    ),
  ],
)
def test_incompatible_fields_are_rejected(fields, sentence):
  run_config = config(**{'objective': 'classification(2)'} | fields)
  with pytest.raises(ValueError, match=sentence):
    validate_run(Experiment(run_config), 1)
    Experiment(run_config).build_model(8)


def check_classes(file, true, predictions):
  """Compares the table of a split with scikit-learn's report of its items."""
  report = metrics.classification_report(true, predictions, output_dict=True, zero_division=math.nan)
  with file.open(encoding='utf-8') as lines:
    rows = {row['name']: row for row in csv.DictReader(lines)}
  assert [*rows] == [str(digit) for digit in range(10)] and file.with_suffix('.png').exists()
  for name, row in rows.items():
    expected = [report[name][key] for key in ('precision', 'recall', 'f1-score', 'support')]
    found = [float(row[key] or 'nan') for key in ('precision', 'recall', 'f1', 'items')]
    np.testing.assert_allclose(found, expected)


@pytest.mark.slow
def test_a_run_on_images_learns_and_is_loaded(tmp_path, capsys):
  """With the commands: 200 steps classify most of the digits."""
  run_config = config(
    **{
      'objective': 'classification(10)',
      'data.source': 'digits',
      'data.length': 17,
      'data.packing': 'each',
      'optimizer.learning_rate': 1e-2,
      'model.patch': 2,
      'model.embedding_initializer': 'normal(0.02)',
      'training.steps': 200,
      'training.batch_size': 64,
      'training.evaluate_every': 200,
    }
  )
  train(run_config, tmp_path)
  assert cli.main(['evaluate', f'--workdir={tmp_path}', '--split=test']) == 0
  values, run = json.loads(capsys.readouterr().out), runs.load(tmp_path)
  true, predictions = predict(run_config, run.model, run.params, runs.open_data(run), 'test')
  check_metrics(values, true, predictions)
  check_classes(pathlib.Path(values['classes']), true, predictions)
  assert cli.main(['evaluate', f'--workdir={tmp_path}', f'--to={tmp_path}/elsewhere']) == 0
  out, err = capsys.readouterr()
  assert json.loads(out)['classes'] == f'{tmp_path}/elsewhere/validation-200.csv' and 'precision' in err
  assert values['accuracy'] > 0.6 and run.tokenizer is None
  assert 'images: 8 × 8 × 1, digits' in (tmp_path / 'log.txt').read_text()
