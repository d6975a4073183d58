"""One text per row, with its answers."""

import dataclasses

import numpy as np

from tfm.data.packing import padded


class _Rows(padded.PaddedRows):
  def _row(self, number, index):
    row = super()._row(number, index)
    valid = row['segments'] > 0
    row['answers'] = np.zeros(self.length, np.int32)
    if valid.any():  # otherwise the text is too long, and skipped
      row['answers'][valid] = self._documents.answer_mask(number, row['targets'][valid])
    return row


@dataclasses.dataclass(frozen=True)
class Answered(padded.Padded):
  """Packs texts as `padded`; `answers` [T] is 1 at the targets that contain a byte of an answer, and 0
  elsewhere.
  """

  document_kinds = (('text', 'answers'),)
  extra_fields = frozenset({'answers'})
  rows_class = _Rows
