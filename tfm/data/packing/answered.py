"""One text a row, with the answers in it."""

import dataclasses

import numpy as np

from tfm.data.packing import padded


class _Rows(padded.Rows):
  def _row(self, number, index):
    row = super()._row(number, index)
    there = row['segments'] > 0
    row['answers'] = np.zeros(self.length, np.int32)
    if there.any():  # else the text is too long, and left out
      row['answers'][there] = self._documents.told(number, row['targets'][there])
    return row


@dataclasses.dataclass(frozen=True)
class Answered(padded.Padded):
  """As `padded` packs texts; `answers` [T] is 1 at the targets that hold any of an answer, and 0 elsewhere."""

  document_kinds = (('text', 'answers'),)
  extra_fields = frozenset({'answers'})
  made = _Rows
