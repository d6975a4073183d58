"""Tokens that `tfm prepare` has written."""

import dataclasses

from tfm.data.prepared_tokens import open_prepared
from tfm.data.sources import protocol
from tfm.errors import require


@dataclasses.dataclass(frozen=True)
class Prepared(protocol.Source):
  """Texts or pairs that are already tokenized, in a folder or a bucket.

  A run on them is the same as on the text. Every process reads the lengths of all documents, 4 bytes each,
  and otherwise only the tokens of its own rows.

  Attributes:
    url: the folder, a path or a URL that fsspec knows, such as gs://bucket/folder (with the package gcsfs).
    pairs: whether the documents are pairs of a source and a target.
  """

  url: str
  pairs: bool = False

  @property
  def fields(self) -> tuple[str, ...]:
    return ('source', 'target') if self.pairs else ('text',)

  def open_corpus(self, store):
    corpus = open_prepared(self.url)
    require(
      corpus.fields == self.fields,
      f'{self.spec} holds {" and ".join(corpus.fields)}; use prepared({self.url!r}, pairs={not self.pairs})',
    )
    return dataclasses.replace(corpus, name=self.spec)
