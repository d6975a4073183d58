"""Properties of structured inputs that are drawn at random and, on failure, made small (Hypothesis)."""

import collections
import json
import keyword
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tfm.masks
from tests.data.distinct_tokens import make_tokens
from tfm import spec
from tfm.config.difference import list_differences
from tfm.config.load import to_json
from tfm.config.overlay import complete
from tfm.config.schema import default_config, leaves
from tfm.conformance import collect
from tfm.data import packing
from tfm.data import tokens as token_arrays
from tfm.data.packing.protocol import PAIR_FIELDS, Packing
from tfm.hf.from_config import nest
from tfm.layers.chunked_cross_entropy import chunk_count, merge_chunks, split_into_chunks
from tfm.masks.protocol import LAYOUTS, Mask


# Specs.
NAMES = st.from_regex('[a-z_][a-z0-9_]{0,8}', fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
SCALARS = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(),
  st.floats(allow_nan=False, allow_infinity=False),
  st.text(max_size=9),
)
LITERALS = st.recursive(
  SCALARS,
  lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)),
  max_leaves=5,
)
CALLS = st.builds(
  spec.Call, NAMES, st.lists(LITERALS, max_size=3).map(tuple), st.dictionaries(NAMES, LITERALS, max_size=3)
)


@given(CALLS)
def test_a_printed_spec_parses_to_itself(call):
  assert spec.parse(str(call)) == call


# Letters of specs, so that some of the text is nearly one, and the attacks that eval would let through.
PIECES = """
causal window size ( ) [ ] { } 8 - & | ~ , = " ' . # := * ** 1e999 lambda: f"{1}" __import__("os") .__class__
"""
NEARLY_SPECS = st.lists(st.sampled_from([*PIECES.split(), ' ', '\n', '\0']), max_size=12).map(''.join)


@given(st.one_of(st.text(max_size=30), NEARLY_SPECS))
def test_junk_is_a_mask_or_one_sentence(text):
  try:
    mask = spec.build(text, tfm.masks, Mask)
  except spec.SpecError as error:
    assert len(str(error).split()) > 3
  else:
    assert isinstance(mask, Mask)


# Masks: a tree of operators over the examples of all masks, beside what it means for sets of pairs.
LENGTH, PREFIX = 12, 5
Q, K = np.indices((LENGTH, LENGTH))


def visible(text, q=Q, k=K):
  return np.broadcast_to(collect.mask(text).bind_prefix(PREFIX)(q, k), np.broadcast_shapes(q.shape, k.shape))


def combine_masks(children):
  """(spec, visible pairs) of `&`, `|` and `~`."""
  return st.one_of(
    st.tuples(children, children).map(
      lambda pair: (f'({pair[0][0]}) & ({pair[1][0]})', pair[0][1] & pair[1][1])
    ),
    st.tuples(children, children).map(
      lambda pair: (f'({pair[0][0]}) | ({pair[1][0]})', pair[0][1] | pair[1][1])
    ),
    children.map(lambda child: (f'~({child[0]})', ~child[1])),
  )


MASKS = st.recursive(
  st.sampled_from(collect.specs('mask')).map(lambda text: (text, visible(text))), combine_masks, max_leaves=5
)


@given(MASKS)
def test_operators_on_masks_are_those_on_sets_of_pairs(mask):
  text, expected = mask
  np.testing.assert_array_equal(visible(text), expected)


@given(MASKS, st.sampled_from(LAYOUTS), st.integers(0, LENGTH - 1), st.permutations(range(LENGTH)))
def test_bounds_of_masks_hold_wherever_a_document_starts(mask, layout, start, order):
  text, _ = mask
  certain, possible = collect.mask(text).bounds(Q, K, layout)
  positions = {
    'contiguous': np.arange(LENGTH),
    'packed': np.arange(LENGTH) - start,
    'arbitrary': np.array(order),
  }[layout]
  q, k = positions[:, None], positions[None, :]
  within = (q >= 0) & (k >= 0)
  is_visible = visible(text, q, k)
  assert not (certain & ~is_visible & within).any(), 'a pair that is certainly visible is hidden'
  assert not (is_visible & ~possible & within).any(), 'a pair that cannot be visible is visible'


# Packing.
DOCUMENTS = st.lists(st.integers(0, 40), min_size=1, max_size=20)
ROW_LENGTHS = st.integers(1, 16)


def count_targets(rows):
  return collections.Counter(int(t) for row in rows for t in row['targets'][row['segments'] > 0])


TEXT_PACKINGS = st.sampled_from(
  ['concat', 'concat(shuffle=False)', 'first_fit', 'first_fit(bins=1)', 'first_fit(bins=3)']
)


@given(TEXT_PACKINGS, DOCUMENTS, ROW_LENGTHS, st.integers(0, 3))
def test_every_token_is_predicted_once(text, lengths, length, seed):
  tokens = make_tokens([*lengths, length])  # long enough for one row
  expected = collections.Counter([*tokens.ids.tolist(), *[tokens.eos_id] * tokens.documents])
  made = spec.build(text, packing, Packing)
  evaluation = made.evaluation_rows(tokens, length)
  assert count_targets(evaluation) == expected and evaluation.tokens_per_epoch == expected.total()
  if text == 'concat':  # an epoch of shuffled rows ends within a row
    return
  rows, count, index = made.rows(tokens, length, seed), collections.Counter(), 0
  while count.total() < 2 * expected.total():
    count += count_targets([rows[index]])
    index += 1
  surplus = count - collections.Counter({token: 2 * n for token, n in expected.items()})
  assert surplus.total() == count.total() - 2 * expected.total()  # two epochs, and the beginning of a third


@given(
  st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20),
  st.integers(4, 24),
  st.integers(1, 6),
  st.floats(1.05, 3),
  st.integers(1, 4),
)
def test_a_pair_is_in_the_narrowest_bucket_that_holds_it(lengths, length, least, ratio, batch_size):
  pairs = token_arrays.Pairs('made up', *(make_tokens(side) for side in zip(*lengths)))
  longest = pairs.sequence_lengths.max(1)
  assume((longest <= length).any())
  rows = spec.build(f'buckets({least}, {ratio})', packing, Packing).evaluation_rows(pairs, length)
  assert len(rows) == (longest <= length).sum()
  sizes = {len(rows[i]['targets']) for i in range(len(rows))}
  found = collections.Counter()
  for i in range(rows.count_batches(batch_size)):
    members = rows.batch_rows(i, batch_size)
    widths = {len(rows[row]['targets']) for row in members if row is not None}
    # k × batch_size rows of length // k tokens.
    assert len(widths) == 1 and length // (len(members) // batch_size) == widths.pop()
    found.update(row for row in members if row is not None)
  assert found == collections.Counter(range(len(rows)))  # each pair once
  for i in range(len(rows)):
    row = rows[i]
    assert set(row) == set(PAIR_FIELDS)
    used = max(int((row['segments'] > 0).sum()), int((row['source_segments'] > 0).sum()))
    assert used <= len(row['targets']) and not any(used <= size < len(row['targets']) for size in sizes)


# The chunks of the loss.
@given(st.integers(1, 8), st.integers(1, 48), st.integers(0, 400))
def test_chunks_of_the_loss_are_equal_and_as_large_as_allowed(rows, length, chunk):
  pieces = chunk_count(rows, length, chunk)
  assert length % pieces == 0
  if chunk:
    # One token of every row at the least; otherwise no more than the chunk, and no smaller than need be.
    assert rows * length // pieces <= chunk or pieces == length
    fewer = [n for n in range(1, pieces) if length % n == 0]
    assert not fewer or math.ceil(rows * length / fewer[-1]) > chunk
  else:
    assert pieces == 1


# Not at random, as every shape is compiled.
@pytest.mark.parametrize('rows, length, pieces', [(1, 1, 1), (3, 12, 1), (3, 12, 4), (2, 5, 5)])
def test_chunks_hold_every_token_once(rows, length, pieces):
  x = np.arange(rows * length * 2).reshape(rows, length, 2)
  split = split_into_chunks(x, pieces)
  assert split.shape == (pieces, rows, length // pieces, 2)
  np.testing.assert_array_equal(split[-1, 0], x[0, length - length // pieces :])
  np.testing.assert_array_equal(merge_chunks(split), x)


# Configs.
FIELDS = {
  path: value
  for path, value in leaves(default_config())
  if type(value) in (int, float, bool) and path != 'training.recurrence_length'
}


def values_like(value):
  if isinstance(value, bool):
    return st.booleans()
  if isinstance(value, int):
    return st.integers(1, 1000)
  return st.floats(1e-3, 1)


CHANGES = st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=6).flatmap(
  lambda paths: st.fixed_dictionaries({path: values_like(FIELDS[path]) for path in paths})
)


@given(CHANGES)
def test_an_overlay_sets_its_fields_and_no_others(changes):
  config = complete(nest(changes))
  assert dict(leaves(config)) == dict(leaves(default_config())) | changes
  assert complete(nest(dict(reversed(changes.items())))) == config
  assert complete(config.to_dict()) == complete(json.loads(to_json(config))) == config
  named = {line.split(':')[0] for line in list_differences(default_config().to_dict(), config.to_dict())}
  assert named <= {path for path, value in changes.items() if value != FIELDS[path]}
