"""Sums over a split, and the bytes of its targets."""

from fractions import Fraction

import jax
import numpy as np

from tfm.data.row_share import RowShare
from tfm.evaluation import evaluate_split
from tfm.evaluation.evaluate_split import ByteCounter, Total, measure, mix_totals
from tfm.parallel import mesh as meshes
from tfm.parallel.sharding import batch_sharding, parse_rules


TOKEN_BYTES = np.array([100, 1, 2, 3])
BATCHES = [
  dict(targets=np.array([[1, 2, 3], [3, 3, 0]]), segments=np.array([[1, 1, 2], [1, 0, 0]])),
  dict(targets=np.array([[2, 0, 0], [1, 1, 1]]), segments=np.array([[1, 0, 0], [1, 1, 1]])),
]


def count(share, token_bytes=TOKEN_BYTES, batches=BATCHES):
  counter = ByteCounter(token_bytes, share)
  assert list(counter.count(batches)) == batches
  return counter


def test_padding_has_no_bytes():
  assert count(RowShare.all(2)).total() == (1 + 2 + 3) + 3 + 2 + 3


def test_rows_that_other_processes_count_have_none(monkeypatch):
  share = RowShare(4, np.array([1, 2]), np.array([False, True]), False)
  monkeypatch.setattr(evaluate_split.processes, 'gather_bytes', lambda own: [own, (1000).to_bytes(8)])
  assert count(share).total() == (3 + 3) + 1000


def test_what_has_no_bytes_is_not_counted():
  assert count(RowShare.all(2), None).total() == 0
  assert count(RowShare.all(2), batches=[dict(segments=np.ones((2, 3)))]).total() == 0
  # The targets of a masked LM are not those of every token.
  assert count(RowShare.all(2), batches=[BATCHES[0] | dict(targets=np.ones((2, 1), int))]).total() == 0


def test_sums_are_in_float64_over_all_batches():
  where = batch_sharding(meshes.make(dict(data=1), jax.devices()[:1]), parse_rules(dict(batch='data')))
  step = jax.jit(lambda params, batch: dict(tokens=params * (batch['segments'] > 0).sum()))
  total = measure(np.float32(0.5), step, BATCHES, where, ByteCounter(TOKEN_BYTES, RowShare.all(2)))
  assert total.sums == dict(tokens=0.5 * 8) and total.bytes == 14
  assert total.sums['tokens'].dtype == np.float64


def test_a_metric_of_a_mixture_is_the_mean_over_its_parts():
  """Per token 3 and 1 nats, 2 and 3 bytes, whatever the number of tokens of each."""
  parts = dict(a=Total(dict(loss=6.0, tokens=2.0), 4), b=Total(dict(loss=8.0, tokens=8.0), 24))
  mixed = mix_totals(parts, dict(a=Fraction(1, 4), b=Fraction(3, 4)))
  assert mixed.sums == dict(loss=10 * (3 / 4 + 3 / 4), tokens=10) and mixed.bytes == 10 * (2 / 4 + 9 / 4)
