"""A prompt with its chosen and its rejected continuation per row."""

import dataclasses

import numpy as np

from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol


REJECTED = 'rejected_'  # before the names of the fields of the second sequence
FIELDS = *protocol.FIELDS, 'answers'


class _Rows(protocol.DocumentRows):
  def _row(self, number, index):
    documents, row = self._documents, preference_row(self.length)
    prompt = len(documents.prompt.document(number)) - 1
    for prefix, sequence in zip(('', REJECTED), documents.sequences(number), strict=True):
      size = len(sequence)
      inputs, places = np.append(documents.bos_id, sequence[:-1]), np.arange(size)
      values = inputs, sequence, places, np.ones(size), places >= prompt
      for field, value in zip(FIELDS, values, strict=True):
        row[f'{prefix}{field}'][:size] = value
    return row


@dataclasses.dataclass(frozen=True)
class Preferences(protocol.Packing):
  """Row i is one prompt with both of its continuations, from position 0 on.

  The usual fields are those of the prompt with the chosen continuation, and those with the prefix `rejected_`
  of the prompt with the rejected one; `answers` [T] is 1 at the targets of a continuation and its end. Pairs
  that are longer than a row are skipped, and a warning counts them.
  """

  layout = 'contiguous'
  document_kinds = (('prompt', 'chosen', 'rejected'),)
  extra_fields = frozenset({'answers', *(f'{REJECTED}{field}' for field in FIELDS)})

  def validate(self, tokens, length):
    protocol.validate_length(length)  # rows are filled up with padding, so no split is too short

  def pack(self, tokens: token_arrays.Preferences, length, seed):
    return _Rows(tokens, length, seed, protocol.fitting_documents(tokens, length))


def preference_row(length: int) -> protocol.Row:
  """Returns a row without any targets."""
  return protocol.padding_row(length, [f'{prefix}{field}' for prefix in ('', REJECTED) for field in FIELDS])
