"""Masks against tables written by hand: the rows are queries, the columns keys."""

import numpy as np
import pytest

import tfm.masks
from tfm import spec
from tfm.masks.protocol import Mask, table

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
}


@pytest.mark.parametrize('text', TABLES)
def test_table(text):
  expected = [[c == 'x' for c in row] for row in TABLES[text].split()]
  np.testing.assert_array_equal(table(spec.build(text, tfm.masks, Mask), 5), expected)
