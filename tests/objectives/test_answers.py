"""The objective `answers`: its loss and metrics are those of the marked tokens alone, and it learns."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.data import pipeline
from tfm.mixers.protocol import Context
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.training import state as states
from tfm.training.metrics import read


def config(**fields):
  """A complete config of a decoder that takes a second to train, by dotted paths."""
  run_config = complete(
    dict(
      objective='answers',
      data=dict(source='copy(4, None, 3, held_out=40)', length=12, packing='answered'),
      model=dict(layers=1, width=32, heads=2),
      training=dict(steps=4, batch_size=8, log_every=1, evaluate_every=4),
    )
  )
  for path, value in fields.items():
    assign(run_config, path, value)
  return resolve_config(run_config)


@pytest.fixture(scope='module')
def evaluated(tmp_path_factory):
  """A model, its parameters, and a batch of 40 texts and 3 rows of padding; one text is made correct by
  hand.
  """
  run_config = config()
  data = pipeline.open_data(
    Experiment(run_config).source, Experiment(run_config).tokenizer, tmp_path_factory.mktemp('cache')
  )
  model = runs.build_model(Experiment(run_config), data.tokenizer, None)
  params = nn.unbox(jax.jit(lambda key: states.init_params(model, key, 1, 12))(jax.random.key(0)))
  rows = Experiment(run_config).objective.rows(
    Experiment(run_config).packing, data.tokens('validation'), 12, None, data.tokenizer
  )
  [batch] = pipeline.evaluation_batches(rows, 43)
  logits = np.asarray(
    model.apply({'params': params}, batch['inputs'], Context(batch['positions'], batch['segments']))[0],
    np.float64,
  )
  # Some texts whose answers the model would write, as far as their own inputs go.
  batch['targets'][:5] = logits[:5].argmax(-1)
  # One of them is one token.
  batch['answers'][0, np.flatnonzero(batch['answers'][0])[1:]] = 0
  return model, params, batch, logits


@pytest.mark.sampled(1)
@pytest.mark.parametrize('chunk', [0, 129])
def test_only_answers_count(evaluated, chunk):
  model, params, batch, logits = evaluated
  objective = Experiment(config(**{'training.loss_chunk': chunk})).objective
  total, sums = jax.jit(lambda p, b: objective(model, p, b, None))(params, batch)
  costs = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, batch['targets'][..., None], -1)[..., 0]
  right = logits.argmax(-1) == batch['targets']
  marked = batch['answers'] > 0
  exact = [right[i][marked[i]].all() for i in range(43) if marked[i].any()]
  assert len(exact) == 40 and 5 <= sum(exact) < 40
  values = objective.summarize({name: np.asarray(x) for name, x in sums.items()}, 0)
  assert values['tokens'] == marked.sum() and {*values} == {
    'loss',
    'accuracy',
    'perplexity',
    'tokens',
    'exact',
  }
  assert (
    values['loss']
    == pytest.approx(costs[marked].mean(), rel=1e-5)
    == pytest.approx(float(total) / marked.sum())
  )
  assert values['accuracy'] == pytest.approx(right[marked].mean()) and values['exact'] == pytest.approx(
    np.mean(exact)
  )
  # In training `exact` is the mean over the texts, too, once it is divided by the tokens.
  _, sums = jax.jit(lambda p, b: objective(model, p, b, jax.random.key(0)))(params, batch)
  assert float(sums['exact'] / sums['tokens']) == pytest.approx(np.mean(exact)) and all(
    x.shape == () for x in sums.values()
  )
  one = {name: x[[0, -1]] for name, x in batch.items()}  # a text and padding
  _, sums = jax.jit(lambda p, b: objective(model, p, b, jax.random.key(0)))(params, one)
  assert sums['exact'] == sums['tokens'] == 1


def test_metrics_of_one_text():
  total = dict(loss=np.float32(0.5), accuracy=np.float32(1), tokens=1, exact=1, texts=1)
  values = Experiment(config()).objective.summarize(total, 0)
  assert values == dict(loss=0.5, accuracy=1, tokens=1, exact=1, perplexity=pytest.approx(np.exp(0.5)))


def test_other_tokens_have_no_gradient(evaluated):
  model, params, batch, _ = evaluated
  objective = Experiment(config()).objective
  gradient = jax.jit(lambda b: jax.grad(lambda p: objective(model, p, b, None)[0])(params))
  other = dict(batch, targets=np.where(batch['answers'] > 0, batch['targets'], 7))
  assert (other['targets'] != batch['targets']).any()
  jax.tree.map(np.testing.assert_array_equal, gradient(batch), gradient(other))


def test_padding_has_the_shape_of_rows(evaluated):
  objective, batch = Experiment(config()).objective, evaluated[2]
  padding = objective.padding_row(12)
  assert {name: (x.shape, x.dtype) for name, x in padding.items()} == {
    name: (x.shape[1:], x.dtype) for name, x in batch.items()
  }
  assert not any(x.any() for x in padding.values())


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      {'data.source': 'stdlib'},
      "trains on texts with answers, and config.data.source='stdlib' has text; use a source such as 'copy'",
    ),
    (
      {'data.packing': 'padded'},
      "packing='padded' does not pack texts with answers; use a packing such as 'answered'",
    ),
    ({'objective': 'causal_lm'}, 'trains on texts, and .* has text and answers'),
    ({'model.architecture': 'encoder'}, "trains 'decoder', not config.model.architecture='encoder'"),
    ({'data.source': 'listops'}, 'trains on texts with answers, and .* has text and label'),
  ],
)
def test_incompatible_fields_are_rejected(fields, sentence):
  run_config = config(**fields)
  with pytest.raises(ValueError, match=sentence):
    validate_run(Experiment(run_config), 1)
    Experiment(run_config).build_model(8)


@pytest.mark.slow
def test_a_layer_learns_to_sort(tmp_path):
  """On unseen texts, where guessing among three letters has an accuracy of one third."""
  run_config = config(
    **{
      'data.source': 'sort(4, None, 3, held_out=100)',
      'training.steps': 320,
      'training.batch_size': 64,
      'training.log_every': 320,
      'training.evaluate_every': 320,
      'optimizer.learning_rate': 1e-2,
      'optimizer.warmup': 20,
    }
  )
  train(run_config, tmp_path)
  rows = {row['split']: row for row in read(tmp_path / 'metrics.jsonl')}
  assert (
    rows['validation']['accuracy'] > 0.8
    and rows['validation']['exact'] > 0.4
    and rows['train']['exact'] > 0.4
  )
