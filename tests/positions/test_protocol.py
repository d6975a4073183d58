"""What a position declares."""

from tfm.positions.protocol import Position


def test_a_bias_that_declares_nothing_is_not_computed_block_by_block():
  class Undeclared(Position):
    def bias(self, table):
      return None

  class Declared(Undeclared):
    has_blockwise_bias = True

  class NoBias(Position):
    pass

  assert [each.has_blockwise_bias for each in (Undeclared, Declared, NoBias)] == [False, True, True]
