"""Masks against tables by hand, queries down and keys across, and pair by pair against definitions."""

import itertools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.masks
from tfm import spec
from tfm.masks import bigbird
from tfm.masks.protocol import Mask, density, is_causal, table


TABLES = {
  'causal': """
    x....
    xx...
    xxx..
    xxxx.
    xxxxx""",
  'window(1)': """
    xx...
    xxx..
    .xxx.
    ..xxx
    ...xx""",
  'window(2, 0)': """
    x....
    xx...
    xxx..
    .xxx.
    ..xxx""",
  'window(0, 1)': """
    xx...
    .xx..
    ..xx.
    ...xx
    ....x""",
  'window(0)': """
    x....
    .x...
    ..x..
    ...x.
    ....x""",
  'causal & ~window(1)': """
    .....
    .....
    x....
    xx...
    xxx..""",
  'dilated(1, 2)': """
    x.x..
    .x.x.
    x.x.x
    .x.x.
    ..x.x""",
  'causal & (window(1) | sinks(1))': """
    x....
    xx...
    xxx..
    x.xx.
    x..xx""",
  'global_tokens(1)': """
    xxxxx
    x....
    x....
    x....
    x....""",
  'longformer(1, 1)': """
    xxxxx
    xxx..
    xxxx.
    x.xxx
    x..xx""",
  'chunked(2)': """
    xx...
    xx...
    ..xx.
    ..xx.
    ....x""",
}


def mask(text):
  return spec.build(text, tfm.masks, Mask)


@pytest.mark.parametrize('text', TABLES)
def test_table(text):
  expected = [[c == 'x' for c in row] for row in TABLES[text].split()]
  np.testing.assert_array_equal(table(mask(text), 5), expected)


# Whether query q sees key k, told without arithmetic on both sides of an array.
DEFINITIONS = {
  'dilated(3, 2)': lambda q, k: k in {q + 2 * i for i in range(-3, 4)},
  'dilated(2, 5)': lambda q, k: k in {q - 10, q - 5, q, q + 5, q + 10},
  'dilated(4, 1)': lambda q, k: k in range(q - 4, q + 5),
  'dilated(0, 3)': lambda q, k: k == q,
  'causal & dilated(3, 4)': lambda q, k: k in {q, q - 4, q - 8, q - 12},
  'sinks(4)': lambda q, k: k in {0, 1, 2, 3},
  'sinks(0)': lambda q, k: False,
  'global_tokens(3)': lambda q, k: q in {0, 1, 2} or k in {0, 1, 2},
  'global_tokens(0)': lambda q, k: False,
  'longformer(4, 2)': lambda q, k: k in range(q - 4, q + 5) or q in {0, 1} or k in {0, 1},
  'longformer(3, 0)': lambda q, k: abs(q - k) < 4,
  'chunked(7)': lambda q, k: any({q, k} <= set(range(i, i + 7)) for i in range(0, 30, 7)),
  'chunked(1)': lambda q, k: q == k,
  'bigbird(3, 0, 1, 5)': lambda q, k: (
    min(q, k) < 6 or any({q, k} <= set(range(i, i + 6)) for i in range(0, 30, 3))
  ),
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_definition(text):
  pairs = [[DEFINITIONS[text](q, k) for k in range(29)] for q in range(29)]
  np.testing.assert_array_equal(table(mask(text), 29), pairs)


def test_what_is_another_name():
  for one, other in (
    ('dilated(5, 1)', 'window(5)'),
    ('longformer(3, 2)', 'window(3) | global_tokens(2)'),
    ('causal & global_tokens(2)', 'causal & (sinks(2) | ~sinks(2) & global_tokens(2))'),
    ('bigbird(1, 0, 3, 2)', 'longformer(3, 2)'),
    ('chunked(40)', 'full'),
  ):
    np.testing.assert_array_equal(table(mask(one), 40), table(mask(other), 40), err_msg=one)


@pytest.mark.parametrize(
  'text, complaint',
  [
    ('dilated(-1, 2)', 'width=-1 must be a whole number, 0 or more'),
    ('dilated(2, 0)', 'step=0 must be a whole number, 1 or more'),
    ('sinks(-1)', 'n=-1 must be a whole number, 0 or more'),
    ('sinks(2.0)', 'n=2.0'),
    ('global_tokens(-2)', 'n=-2 must be a whole number, 0 or more'),
    ('longformer(-1, 0)', 'window=-1 must be a whole number, 0 or more'),
    ('longformer(1, -1)', 'global_tokens=-1 must be a whole number, 0 or more'),
    ('chunked(0)', 'n=0 must be a whole number, 1 or more'),
    ('bigbird(block=0)', 'block=0 must be a whole number, 1 or more'),
    ('bigbird(random=-1)', 'random=-1 must be a whole number, 0 or more'),
    ('bigbird(window=-1)', 'window=-1 must be'),
    ('bigbird(global_tokens=-1)', 'global_tokens=-1 must be'),
    ('bigbird(seed=-1)', 'seed=-1 must be'),
    ('bigbird(blocks=0)', 'blocks=0 must be a whole number, 1 or more'),
  ],
)
def test_refusals(text, complaint):
  with pytest.raises(ValueError) as refusal:
    mask(text)
  assert complaint in str(refusal.value)


def test_chunks_are_planned_for_packed_rows():
  """A kernel may leave out blocks of keys that are a chunk or more away, wherever documents begin."""
  index = np.arange(20)
  certain, possible = mask('chunked(4)').bounds(index[:, None], index[None, :], 'packed')
  distance = np.abs(index[:, None] - index[None, :])
  np.testing.assert_array_equal(possible, distance < 4)
  np.testing.assert_array_equal(certain, distance == 0)


class TestBigBird:
  """The drawn blocks, which no table foretells: how many, from where, how evenly, and always the same."""

  @staticmethod
  def drawn(made, blocks):
    """[blocks, blocks]: which blocks are seen and are neither global nor in the window."""
    seen = table(made, blocks * made.block).reshape(blocks, made.block, blocks, made.block)
    assert (seen == seen[:, :1, :, :1]).all()  # a block is seen as a whole, by a whole block
    start = math.ceil(made.global_tokens / made.block)
    near = np.abs(np.arange(blocks)[:, None] - np.arange(blocks)[None]) <= made.window
    first = np.minimum(np.arange(blocks)[:, None], np.arange(blocks)[None]) < start
    assert seen[:, 0, :, 0][near | first].all()
    return seen[:, 0, :, 0] & ~near & ~first

  @pytest.mark.parametrize('random, window, tokens', [(1, 0, 0), (3, 1, 4), (2, 2, 5), (6, 0, 1), (0, 1, 4)])
  @pytest.mark.parametrize('blocks', [None, 16])
  def test_as_many_as_asked_for_where_there_are_so_many(self, random, window, tokens, blocks):
    start = math.ceil(tokens / 4)
    for seed in range(5):
      drawn = self.drawn(bigbird.BigBird(4, random, window, tokens, seed, blocks), 16)
      for i in range(start, 16):
        candidates = [j for j in range(start, i if blocks is None else 16) if abs(i - j) > window]
        assert drawn[i].sum() == min(random, len(candidates))
        assert set(np.flatnonzero(drawn[i])) <= set(candidates)

  def test_under_causal_none_is_lost(self):
    text = 'bigbird(2, 3, 1, 2)'
    assert is_causal(mask(f'causal & {text}'), 64) and not is_causal(mask(text), 64)
    blocks = table(mask(f'causal & {text}'), 64)[::2, ::2].sum(-1)
    np.testing.assert_array_equal(blocks[6:], 3 + 2 + 1)  # drawn, window with the block itself, global

  @pytest.mark.parametrize('blocks, i, candidates', [(None, 8, range(1, 7)), (9, 4, [1, 2, 6, 7, 8])])
  def test_every_set_is_as_likely_as_another(self, blocks, i, candidates):
    """Pearson's statistic over the sets of two, in the 99.9 % that chance allows."""
    draws, sets = 6000, {pair: 0 for pair in itertools.combinations(candidates, 2)}
    for seed in range(draws):
      seen = bigbird.BigBird(1, 2, 1, 1, seed, blocks)(np.array([[i]]), np.arange(9)[None])[0]
      sets[tuple(j for j in candidates if seen[j])] += 1
    expected = draws / len(sets)
    statistic = sum((count - expected) ** 2 / expected for count in sets.values())
    assert statistic < {15: 36.1, 10: 27.9}[len(sets)]

  def test_rows_are_drawn_apart(self):
    """Where in its past a block looks: evenly over all rows of one seed, and whatever the row before did."""
    drawn = self.drawn(bigbird.BigBird(1, 1, 0, 0), 1500)
    where = np.array([(np.flatnonzero(drawn[i])[0] + 0.5) / i for i in range(100, 1500)])
    counts = np.histogram(where, 10, (0, 1))[0]
    assert ((counts - 140) ** 2 / 140).sum() < 27.9
    assert abs(np.corrcoef(where[:-1], where[1:])[0, 1]) < 3.3 / math.sqrt(1400)

  def test_other_seeds_and_other_draws_differ(self):
    tables = [table(bigbird.BigBird(1, random, 1, 1, seed), 60) for random in (1, 2) for seed in range(4)]
    for one, other in itertools.combinations(tables, 2):
      assert (one != other).any()

  def test_the_pattern_is_that_of_yesterday(self):
    """A trained model sees by it: neither a release of NumPy nor a refactoring may move it."""
    seen = self.drawn(mask('bigbird(8, 2, 1, 8, seed=7)'), 12)
    assert [np.flatnonzero(row).tolist() for row in seen] == [
      [],
      [],
      [],
      [1],
      [1, 2],
      [1, 3],
      [1, 2],
      [4, 5],
      [1, 5],
      [1, 2],
      [2, 7],
      [5, 6],
    ]
    seen = self.drawn(mask('bigbird(8, 2, 1, 8, seed=7, blocks=12)'), 12)
    assert [np.flatnonzero(row).tolist() for row in seen] == [
      [],
      [6, 8],
      [5, 6],
      [5, 8],
      [8, 10],
      [2, 7],
      [1, 10],
      [1, 4],
      [3, 5],
      [1, 5],
      [2, 7],
      [5, 6],
    ]

  def test_far_positions_overflow_nowhere(self):
    """As with Python's whole numbers, which have no end."""
    made = bigbird.BigBird(1, 3, 1, 2, seed=2**40)
    q = np.array([10, 46_336, 46_337, 10**6, 10**8, 2**31 - 4], np.int32)
    exact = [[int(block) for block in made.drawn(int(i), 2)] for i in q]
    assert all(len({*row}) == 3 and 2 <= min(row) and max(row) < i - 1 for row, i in zip(exact, q))
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      for kind in (np.int32, np.int64):
        np.testing.assert_array_equal(np.transpose(made.drawn(q.astype(kind), 2)), exact)
        np.testing.assert_array_equal([made.drawn(i, 2) for i in q.astype(kind)], exact)
    device = jax.jit(lambda i: jnp.stack(made.drawn(i, 2), -1))(jnp.asarray(q))
    np.testing.assert_array_equal(device, exact)

  def test_pairs_grow_with_the_length_and_not_with_its_square(self):
    assert density(mask('bigbird(4, 3, 1, 8)'), 1024) < 0.55 * density(mask('bigbird(4, 3, 1, 8)'), 512)
