"""One document per row, followed by padding."""

import dataclasses
import logging
from typing import ClassVar

from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.packing import protocol


_log = logging.getLogger(__name__)


class PaddedRows(protocol.DocumentRows):
  """The rows of `Padded`."""

  def _row(self, number, index):
    is_pair = isinstance(self._documents, token_arrays.Pairs)
    row = protocol.padding_row(self.length, protocol.PAIR_FIELDS if is_pair else protocol.FIELDS)
    if (longest := max(map(len, self._documents.sequences(number)))) > self.length:
      _log.warning(
        '%s[%d] has %d tokens, more than a row of %d, and is skipped',
        self._documents.name,
        number,
        longest,
        self.length,
      )
    else:
      protocol.write_document(row, self._documents, number, segment=1)
    return row


@dataclasses.dataclass(frozen=True)
class Padded(protocol.Packing):
  """The simplest packing: row i is one text, or one pair, from position 0 on.

  Documents that are longer than a row are skipped with a warning. Every epoch has its own random order.
  Documents may
  be infinitely many: then there is no epoch, and the row of a document that is too long stays empty.
  """

  layout = 'contiguous'
  document_kinds = ('text',), ('source', 'target')
  supports_infinite = True
  rows_class: ClassVar[type[PaddedRows]] = PaddedRows

  def validate(self, tokens, length):
    protocol.validate_length(length)  # rows are filled up with padding, so no split is too short

  def pack(self, tokens, length, seed):
    is_infinite = tokens.documents == INFINITE
    numbers = None if is_infinite else protocol.fitting_documents(tokens, length)
    return self.rows_class(tokens, length, seed, numbers)
