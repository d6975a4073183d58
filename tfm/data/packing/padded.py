"""One document a row, filled up with padding."""

import dataclasses
import logging
from typing import ClassVar

from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol


_log = logging.getLogger(__name__)


class Rows(protocol.OneEach):
  """The rows of `Padded`."""

  def _row(self, number, index):
    pairs = isinstance(self._documents, token_arrays.Pairs)
    row = protocol.padding(self.length, protocol.PAIR_FIELDS if pairs else protocol.FIELDS)
    if (longest := max(map(len, self._documents.sides(number)))) > self.length:
      _log.warning(
        '%s[%d] is of %d tokens, and longer than a row of %d: it is left out',
        self._documents.name,
        number,
        longest,
        self.length,
      )
    else:
      protocol.put(row, self._documents, number, segment=1)
    return row


@dataclasses.dataclass(frozen=True)
class Padded(protocol.Packing):
  """The plainest packing: row i is a text, or a pair, from position 0 on.

  What is longer than a row is left out, and a warning tells of it. Every epoch has an order of its own.
  Documents may
  have no end: then there is no epoch, and the row of one that is too long stays empty.
  """

  layout = 'contiguous'
  document_kinds = ('text',), ('source', 'target')
  supports_infinite = True
  made: ClassVar[type[Rows]] = Rows

  def check(self, tokens, length):
    protocol.check_length(length)  # a row is filled up with padding, so nothing is too short

  def pack(self, tokens, length, seed):
    endless = tokens.documents == protocol.INFINITE
    return self.made(tokens, length, seed, None if endless else protocol.within(tokens, length))
