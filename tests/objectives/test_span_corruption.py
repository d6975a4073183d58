"""Span corruption: the removed spans are in the target, in the published amounts."""

import collections

import numpy as np
import pytest

from tests.objectives.random_tokens import NumberedTokenizer, random_tokens
from tfm.data.packing.concat import Concat
from tfm.objectives.span_corruption import SpanCorruption, random_partition


PLAIN = dict(chunk=0, layout='contiguous', recurrence=0)
V = NumberedTokenizer.vocab_size


class TokenizerWithBos(NumberedTokenizer):
  """The first token of a text differs from the last."""

  bos_id = V - 1


def restore_text(row):
  """Returns the text of a source and target, and the lengths of the removed spans."""
  source, target = (
    row[field][row[segments] > 0].tolist()
    for field, segments in (('source', 'source_segments'), ('targets', 'segments'))
  )
  assert source.pop() == target.pop() == NumberedTokenizer.eos_id
  assert row['segments'].max() == row['source_segments'].max() == 1
  spans, text = {}, []
  for token in target:
    if token >= V:
      spans[token] = here = []
    else:
      here.append(token)
  assert list(spans) == list(range(V, V + len(spans)))
  for token in source:
    text += spans[token] if token >= V else [token]
  assert [token for token in source if token >= V] == list(spans)
  return text, [len(span) for span in spans.values()]


def test_source_and_target_are_the_text():
  data, objective, length = random_tokens(), SpanCorruption(**PLAIN), 40
  rows, plain = (
    objective.rows(Concat(), data, length, 1, TokenizerWithBos),
    Concat().rows(data, objective.text_length(length), 1),
  )
  sizes = collections.Counter()
  for i in range(50):
    text, spans = restore_text(rows[i])
    np.testing.assert_array_equal(text, plain[i]['inputs'])
    assert (sum(spans), len(spans)) == objective.counts(len(text))
    np.testing.assert_array_equal(rows[i]['inputs'], [V - 1, *rows[i]['targets'][:-1]])
    assert rows[i]['source'].shape == (length,) and (rows[i]['source_segments'] > 0).all()
    sizes.update(spans)
  assert len(sizes) > 2  # a mean of three, and not always three
  same, other = (objective.corrupt(TokenizerWithBos, length, seed, plain[0], 0) for seed in (1, 2))
  np.testing.assert_array_equal(same['source'], rows[0]['source'])
  assert (other['source'] != rows[0]['source']).any()  # the spans depend on the seed


def test_one_pass_covers_the_split():
  data, objective = random_tokens(documents=3), SpanCorruption(**PLAIN)
  texts = [
    restore_text(row)[0]
    for row in objective.rows(Concat(), data, 24, None, TokenizerWithBos)
    if row['segments'].any()
  ]
  whole = np.concatenate([data.document(d) for d in range(data.documents)])
  # The stream begins with the end of a text, and its last token is a target of Concat's alone.
  np.testing.assert_array_equal(sum(texts, [])[1:], whole[: len(sum(texts, [])) - 1])
  assert len(sum(texts, [])) >= len(whole) - 1


def test_padding_has_the_types_of_rows():
  objective = SpanCorruption(**PLAIN)
  row = objective.rows(Concat(), random_tokens(), 24, 1, TokenizerWithBos)[0]
  padding = objective.padding_row(24)
  assert {x.dtype for x in padding.values()} == {np.dtype(np.int32)}
  assert {name: x.dtype for name, x in padding.items()} == {name: x.dtype for name, x in row.items()}


def test_one_sentinel_is_enough_for_one_span():
  assert SpanCorruption(sentinels=1, **PLAIN).special_tokens == ('<extra_id_0>',)


def test_published_lengths():
  """Raffel et al. 2020, released code: 568 tokens of text give 512 of source and 114 of target."""
  objective = SpanCorruption(**PLAIN)
  assert objective.text_length(512) == 568 and objective.lengths(568) == (512, 114)
  assert SpanCorruption(**PLAIN, sentinels=28).text_length(512) == 568


def test_a_text_is_the_longest_that_fits():
  objective = SpanCorruption(**PLAIN)
  for length in range(3, 60):
    tokens = objective.text_length(length)
    assert max(objective.lengths(tokens)) <= length < max(objective.lengths(tokens + 1))


@pytest.mark.parametrize(
  'settings, tokens, counts',
  [
    (dict(), 2, (1, 1)),
    (dict(), 3, (1, 1)),
    (dict(), 100, (15, 5)),
    (dict(rate=0.9), 2, (1, 1)),
    (dict(rate=0.9, span=1.0), 10, (9, 1)),
    (dict(rate=0.2, span=5.0), 10, (2, 1)),
    (dict(rate=0.5, span=1.0), 10, (5, 5)),
  ],
)
def test_one_token_is_removed_and_one_remains(settings, tokens, counts):
  """And in as many spans as there are parts between them."""
  assert SpanCorruption(**PLAIN, **settings).counts(tokens) == counts


def test_a_text_of_two_tokens_is_the_shortest():
  objective, row = SpanCorruption(**PLAIN), dict(inputs=np.array([7, 8]), segments=np.array([1, 1]))
  assert restore_text(objective.corrupt(TokenizerWithBos, 4, 0, row, 0)) == ([7, 8], [1])
  row['segments'][1] = 0
  assert not any(x.any() for x in objective.corrupt(TokenizerWithBos, 4, 0, row, 0).values())


@pytest.mark.parametrize('total, count', [(5, 1), (5, 5), (6, 3)])
def test_partitions_are_uniformly_distributed(total, count):
  draw, seen = np.random.default_rng(0), collections.Counter()
  for _ in range(600):
    partition = random_partition(total, count, draw.integers(0, 2**63, max(total - 1, 1)).astype(np.uint64))
    assert partition.sum() == total and partition.min() >= 1 and len(partition) == count
    seen[tuple(partition.tolist())] += 1
  ways = {1: 1, 5: 1, 3: 10}[count]
  assert len(seen) == ways
  assert max(seen.values()) < 2 * 600 / ways


@pytest.mark.parametrize(
  'call, sentence',
  [
    (lambda: SpanCorruption(rate=0.0, **PLAIN), 'rate=0.0 must lie between 0 and 1'),
    (lambda: SpanCorruption(rate=1.0, **PLAIN), 'rate=1.0 must lie between 0 and 1'),
    (lambda: SpanCorruption(sentinels=0, **PLAIN), 'sentinels=0 must be 1 or more'),
    (lambda: SpanCorruption(span=0.5, **PLAIN), 'span=0.5 must be 1 or more'),
    (
      lambda: SpanCorruption(sentinels=5, **PLAIN).padding_row(512),
      'sentinels=5 are too few for the 28 spans',
    ),
    (lambda: SpanCorruption(**PLAIN).padding_row(2), 'data.length=2 has no room'),
  ],
)
def test_invalid_fields_are_rejected(call, sentence):
  with pytest.raises(ValueError, match=sentence):
    call()
