"""Sequence to sequence: the loss is that of the formula, and neither packing nor buckets nor chunks change
it.
"""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.models import pairs
from tests.models.pairs import VOCAB, context, logits, make_model
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_run
from tfm.data import packing, pipeline
from tfm.data.packing.protocol import Packing
from tfm.data.tokens import Pairs, Tokens
from tfm.objectives.seq2seq import Seq2Seq


LENGTH = 16


@pytest.fixture(scope='module')
def data():
  """Pairs of a few tokens each; the end of a text is 0."""
  draw = np.random.default_rng(0)

  def tokens(name):
    lengths = draw.integers(0, 7, 5)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(name, draw.integers(1, VOCAB, offsets[-1]), offsets, eos_id=0, bytes=1)

  return Pairs('made up', tokens('source'), tokens('target'))


def batches(data, text):
  rows = spec.build(text, packing, Packing).evaluation_rows(data, LENGTH)
  return list(pipeline.evaluation_batches(rows, 2))


def expected(data, smoothing):
  """Returns (objective, loss), computed for each pair alone and without padding."""
  model, params = make_model()
  totals = np.zeros(2)
  for d in range(data.source.documents):
    source, target = data.source.document(d)[None], data.target.document(d)[None]
    output = logits(
      model, params, np.roll(target, 1), context(np.ones_like(target)), source, context(np.ones_like(source))
    )
    log_p = np.asarray(jax.nn.log_softmax(output[0]), np.float64)
    right = -log_p[np.arange(target.size), target[0]].sum()
    totals += (1 - smoothing) * right - smoothing * log_p.mean(-1).sum(), right
  return totals


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'text, chunk, smoothing',
  [
    ('first_fit', 8, 0.1),
    ('buckets(least=4)', 0, 0.0),
    pytest.param('first_fit', 0, 0.0, marks=pytest.mark.slow),
  ],
)
def test_loss(data, text, chunk, smoothing):
  config = pairs.config()
  config.objective, config.data.packing = f'seq2seq(label_smoothing={smoothing})', text.partition('(')[0]
  objective = dataclasses.replace(Experiment(config).objective, chunk=chunk)
  model, params = make_model()
  step = jax.jit(lambda params, batch: objective(model, params, batch, None))
  totals, tokens = np.zeros(2), 0
  for batch in batches(data, text):
    total, sums = step(params, batch)
    totals += float(total), float(sums['loss'])
    tokens += float(sums['tokens'])
  np.testing.assert_allclose(totals, expected(data, smoothing), rtol=2e-5)
  assert tokens == data.targets


class Contexts(nn.Module):
  """Its features are the contexts of target and source, with noise of dropout in training."""

  def encode(self, source, context):
    return context

  def features(self, tokens, context, caches, memory):
    return (context, memory, self.make_rng('dropout') if context.train else None), None


class ContextsAlone(Seq2Seq):
  def compute_loss(self, model, params, features, targets, weights, reports):
    return features, {}


@pytest.mark.parametrize('key', [None, jax.random.key(0)])
def test_both_sides_are_trained_with_dropout_and_know_their_layout(data, key):
  objective = ContextsAlone(chunk=0, layout='packed', recurrence=0)
  (*sides, noise), _ = objective(Contexts(), {}, batches(data, 'first_fit')[0], key)
  assert [(side.train, side.layout) for side in sides] == [(key is not None, 'packed')] * 2
  assert (noise is None) == (key is None)


def test_padding_has_the_shape_of_rows(data):
  row = spec.build('first_fit', packing, Packing).evaluation_rows(data, LENGTH)[0]
  padding = Experiment(pairs.config()).objective.padding_row(LENGTH)
  assert {name: (x.shape, x.dtype) for name, x in padding.items()} == {
    name: (x.shape, x.dtype) for name, x in row.items()
  }
  assert not any(x.any() for x in padding.values())


def test_incompatible_fields_are_rejected():
  config = pairs.config()
  config.data.source = 'stdlib'
  with pytest.raises(
    ValueError, match="objective='seq2seq' trains on pairs.*data.source='stdlib' has text; use .* 'parallel"
  ):
    validate_run(Experiment(config), 1)
  config.data.update(source="parallel('a', 'b')", packing='concat')
  with pytest.raises(
    ValueError, match="packing='concat' does not pack pairs.*use a packing such as 'buckets'"
  ):
    validate_run(Experiment(config), 1)
  config.data.packing, config.training.recurrence_length = 'first_fit', 8
  with pytest.raises(ValueError, match='recurrence_length=8 reads rows in segments'):
    validate_run(Experiment(config), 1)
  config = pairs.config()
  config.data.update(source="parallel('a', 'b')")
  config.decoding.length_penalty = 'gnu(1)'
  with pytest.raises(ValueError, match="config.decoding.length_penalty='gnu"):
    validate_run(Experiment(config), 1)
