"""What a document is, and the hash of a set of documents.

A document has one or more fields: a text, a source and its translation, a text or an image with its labels,
or an image with its text and its label.
"""

import collections
import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


SPLITS = ('train', 'validation', 'test')
INFINITE = sys.maxsize  # the number of documents of a split that generates them without end
VERSION = 1  # of the rules that form documents and splits; a part of every hash

LABELS = 'label', 'labels'  # fields that are predicted: of a document, of each of its words
ANSWERS = 'answers'  # the field with the answers' byte ranges in the text: `first:last`, separated by spaces
IMAGE = 'image'  # the only field that is not text

Field = str | np.ndarray  # a text, or an image, uint8 [H, W, C]
Document = tuple[str | None, *tuple[Field, ...]]  # the split that the source assigns, if any, and the fields
SplitDocument = tuple[str, *tuple[Field, ...]]  # a document whose split is decided


class Survey:
  """Counts, sizes and the hash of documents in splits; none depends on the order of the documents."""

  def __init__(self):
    self.documents, self.bytes, self._sum = collections.Counter(), collections.Counter(), 0

  def add(self, split: str, *fields: Field) -> None:
    data = _join(fields)
    self.documents[split] += 1
    self.bytes[split] += len(data)
    digest = hashlib.blake2b(data, digest_size=32, person=split.encode()).digest()
    self._sum = (self._sum + int.from_bytes(digest, 'big')) % 2**256  # a sum does not depend on the order

  def merge(self, other: 'Survey') -> 'Survey':
    """Adds the documents of another survey; returns this one."""
    self.documents.update(other.documents)
    self.bytes.update(other.bytes)
    self._sum = (self._sum + other._sum) % 2**256
    return self

  @property
  def state(self) -> dict[str, Any]:
    """The survey as a JSON object; `from_state` restores it."""
    return dict(documents=self.documents, bytes=self.bytes, sum=self._sum)

  @classmethod
  def from_state(cls, state: Mapping[str, Any]) -> 'Survey':
    survey = cls()
    survey.documents.update(state['documents'])
    survey.bytes.update(state['bytes'])
    survey._sum = state['sum']
    return survey

  @property
  def hash(self) -> str:
    state = VERSION, sorted(self.documents.items()), sorted(self.bytes.items()), self._sum
    return hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest()


def digest(*fields: Field) -> bytes:
  """Returns the hash of a document's fields, 16 bytes."""
  return hashlib.blake2b(_join(fields), digest_size=16).digest()


def changed_error(name: str) -> ValueError:
  """Returns the error of a source whose documents differ between two readings."""
  return ValueError(f'{name} changed while it was read; run again when its files are complete')


def _join(fields: Sequence[Field]) -> bytes:
  return b'\0'.join(
    x.encode() if isinstance(x, str) else repr(x.shape).encode() + x.tobytes() for x in fields
  )
