"""Masks against handwritten tables (queries down, keys across) and against definitions pair by pair."""

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


def build_mask(text):
  return spec.build(text, tfm.masks, Mask)


@pytest.mark.parametrize('text', TABLES)
def test_table(text):
  expected = [[c == 'x' for c in row] for row in TABLES[text].split()]
  np.testing.assert_array_equal(table(build_mask(text), 5), expected)


# Whether query q sees key k, in plain Python without array arithmetic.
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
  np.testing.assert_array_equal(table(build_mask(text), 29), pairs)


@pytest.mark.parametrize('text', ['causal', 'full & ~window(3)', 'causal & dilated(3, 4)', 'sinks(4)'])
@pytest.mark.parametrize('queries, keys', [(13, 13), (7, 20), (20, 7)])
def test_the_density_is_that_of_the_table(text, queries, keys):
  mask = build_mask(text)
  assert density(mask, queries, keys) == pytest.approx(table(mask, queries, keys).mean(), abs=1e-12)


def test_equivalent_masks():
  for one, other in (
    ('dilated(5, 1)', 'window(5)'),
    ('longformer(3, 2)', 'window(3) | global_tokens(2)'),
    ('causal & global_tokens(2)', 'causal & (sinks(2) | ~sinks(2) & global_tokens(2))'),
    ('bigbird(1, 0, 3, 2)', 'longformer(3, 2)'),
    ('chunked(40)', 'full'),
  ):
    np.testing.assert_array_equal(table(build_mask(one), 40), table(build_mask(other), 40), err_msg=one)


@pytest.mark.parametrize(
  'text, message',
  [
    ('dilated(-1, 2)', 'width=-1 must be at least 0'),
    ('dilated(2, 0)', 'step=0 must be at least 1'),
    ('sinks(-1)', 'n=-1 must be at least 0'),
    ('sinks(2.0)', 'n=2.0'),
    ('global_tokens(-2)', 'n=-2 must be at least 0'),
    ('longformer(-1, 0)', 'window=-1 must be at least 0'),
    ('longformer(1, -1)', 'global_tokens=-1 must be at least 0'),
    ('chunked(0)', 'n=0 must be at least 1'),
    ('bigbird(block=0)', 'block=0 must be at least 1'),
    ('bigbird(random=-1)', 'random=-1 must be at least 0'),
    ('bigbird(window=-1)', 'window=-1 must be'),
    ('bigbird(global_tokens=-1)', 'global_tokens=-1 must be'),
    ('bigbird(seed=-1)', 'seed=-1 must be'),
    ('bigbird(blocks=0)', 'blocks=0 must be at least 1'),
  ],
)
def test_invalid_settings(text, message):
  with pytest.raises(ValueError) as error:
    build_mask(text)
  assert message in str(error.value)


def test_bounds_of_chunks_in_packed_rows():
  """A kernel may skip key blocks that are a chunk or more away, wherever documents start."""
  index = np.arange(20)
  certain, possible = build_mask('chunked(4)').bounds(index[:, None], index[None, :], 'packed')
  distance = np.abs(index[:, None] - index[None, :])
  np.testing.assert_array_equal(possible, distance < 4)
  np.testing.assert_array_equal(certain, distance == 0)


class TestBigBird:
  """The random blocks: their number, range, distribution and reproducibility."""

  @staticmethod
  def random_table(mask, blocks):
    """[blocks, blocks]: the visible blocks that are neither global nor in the window."""
    visible = table(mask, blocks * mask.block).reshape(blocks, mask.block, blocks, mask.block)
    assert (visible == visible[:, :1, :, :1]).all()  # all pairs of two blocks are alike
    start = math.ceil(mask.global_tokens / mask.block)
    near = np.abs(np.arange(blocks)[:, None] - np.arange(blocks)[None]) <= mask.window
    first = np.minimum(np.arange(blocks)[:, None], np.arange(blocks)[None]) < start
    assert visible[:, 0, :, 0][near | first].all()
    return visible[:, 0, :, 0] & ~near & ~first

  @pytest.mark.parametrize('random, window, tokens', [(1, 0, 0), (3, 1, 4), (2, 2, 5), (6, 0, 1), (0, 1, 4)])
  @pytest.mark.parametrize('blocks', [None, 16])
  def test_draws_the_requested_number_if_there_are_enough_candidates(self, random, window, tokens, blocks):
    start = math.ceil(tokens / 4)
    for seed in range(5):
      random_blocks = self.random_table(bigbird.BigBird(4, random, window, tokens, seed, blocks), 16)
      for i in range(start, 16):
        candidates = [j for j in range(start, i if blocks is None else 16) if abs(i - j) > window]
        assert random_blocks[i].sum() == min(random, len(candidates))
        assert set(np.flatnonzero(random_blocks[i])) <= set(candidates)

  def test_causal_hides_no_random_block(self):
    text = 'bigbird(2, 3, 1, 2)'
    assert is_causal(build_mask(f'causal & {text}'), 64) and not is_causal(build_mask(text), 64)
    blocks = table(build_mask(f'causal & {text}'), 64)[::2, ::2].sum(-1)
    np.testing.assert_array_equal(blocks[6:], 3 + 2 + 1)  # random, window with the block itself, global

  @pytest.mark.parametrize('blocks, i, candidates', [(None, 8, range(1, 7)), (9, 4, [1, 2, 6, 7, 8])])
  def test_every_set_is_equally_likely(self, blocks, i, candidates):
    """Pearson's statistic over all pairs of blocks is below its 99.9 % quantile."""
    draws, sets = 6000, {pair: 0 for pair in itertools.combinations(candidates, 2)}
    for seed in range(draws):
      visible = bigbird.BigBird(1, 2, 1, 1, seed, blocks)(np.array([[i]]), np.arange(9)[None])[0]
      sets[tuple(j for j in candidates if visible[j])] += 1
    expected = draws / len(sets)
    statistic = sum((count - expected) ** 2 / expected for count in sets.values())
    assert statistic < {15: 36.1, 10: 27.9}[len(sets)]

  def test_rows_are_independent(self):
    """Draws are uniform over the past of a block, and uncorrelated between consecutive rows."""
    random_blocks = self.random_table(bigbird.BigBird(1, 1, 0, 0), 1500)
    relative_positions = np.array([(np.flatnonzero(random_blocks[i])[0] + 0.5) / i for i in range(100, 1500)])
    counts = np.histogram(relative_positions, 10, (0, 1))[0]
    assert ((counts - 140) ** 2 / 140).sum() < 27.9
    assert abs(np.corrcoef(relative_positions[:-1], relative_positions[1:])[0, 1]) < 3.3 / math.sqrt(1400)

  def test_seeds_and_draw_counts_give_different_masks(self):
    tables = [table(bigbird.BigBird(1, random, 1, 1, seed), 60) for random in (1, 2) for seed in range(4)]
    for one, other in itertools.combinations(tables, 2):
      assert (one != other).any()

  def test_pattern_is_stable(self):
    """Trained models depend on it: no NumPy release and no refactoring may change the draws."""
    visible = self.random_table(build_mask('bigbird(8, 2, 1, 8, seed=7)'), 12)
    assert [np.flatnonzero(row).tolist() for row in visible] == [
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
    visible = self.random_table(build_mask('bigbird(8, 2, 1, 8, seed=7, blocks=12)'), 12)
    assert [np.flatnonzero(row).tolist() for row in visible] == [
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

  def test_large_positions_do_not_overflow(self):
    """Equal to the same arithmetic on unbounded Python integers."""
    bigbird_mask = bigbird.BigBird(1, 3, 1, 2, seed=2**40)
    q = np.array([10, 46_336, 46_337, 10**6, 10**8, 2**31 - 4], np.int32)
    exact = [[int(block) for block in bigbird_mask.random_blocks(int(i), 2)] for i in q]
    assert all(len({*row}) == 3 and 2 <= min(row) and max(row) < i - 1 for row, i in zip(exact, q))
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      for kind in (np.int32, np.int64):
        np.testing.assert_array_equal(np.transpose(bigbird_mask.random_blocks(q.astype(kind), 2)), exact)
        np.testing.assert_array_equal([bigbird_mask.random_blocks(i, 2) for i in q.astype(kind)], exact)
    device = jax.jit(lambda i: jnp.stack(bigbird_mask.random_blocks(i, 2), -1))(jnp.asarray(q))
    np.testing.assert_array_equal(device, exact)

  def test_visible_pairs_grow_linearly_with_length(self):
    assert density(build_mask('bigbird(4, 3, 1, 8)'), 1024) < 0.55 * density(
      build_mask('bigbird(4, 3, 1, 8)'), 512
    )
