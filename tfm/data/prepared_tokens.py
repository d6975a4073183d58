"""The description of tokens that `tfm prepare` has written to a folder or a bucket.

DIR/prepared.json            what there is, and the digest of every file; written last
DIR/train/text.ids-…, …      the shards (`token_shards`) of each split
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.data import tokens as token_arrays
from tfm.data.corpus import Corpus
from tfm.data.token_shards import ShardedIds, Storage, TokenColumn, shard_name
from tfm.data.tokenizers.protocol import PreparedTokenizer, Tokenizer, load
from tfm.errors import parsing, require


DESCRIPTION = 'prepared.json'
VERSION = 1  # of the files


def describe(
  corpus: Corpus,
  tokenizers: Mapping[str, Tokenizer],
  specs: Mapping[str, str],
  written: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
  """Returns the content of `prepared.json`, for shards in order."""

  def counts(split, field, what):
    return [shard['fields'][field][what] for shard in written if shard['split'] == split]

  return dict(
    version=VERSION,
    name=corpus.name,
    corpus=corpus.hash,
    bytes=dict(corpus.bytes),
    documents=dict(corpus.documents),
    fields={
      field: dict(
        spec=specs[field],
        tokenizer=tokenizer.state(),
        tokens={split: counts(split, field, 'tokens') for split in corpus.splits},
        bytes={split: sum(counts(split, field, 'bytes')) for split in corpus.splits},
      )
      for field, tokenizer in tokenizers.items()
    },
    digests=dict(itertools.chain.from_iterable(shard['digests'].items() for shard in written)),
  )


def open_prepared(url: str) -> Corpus:
  """Returns the corpus of prepared tokens.

  Raises:
    ValueError: if it is not there, or a file is missing or has another size.
  """
  folder = Storage(url)
  try:
    data = folder.read(DESCRIPTION)
  except FileNotFoundError:
    raise ValueError(f'{url} has no {DESCRIPTION}, which tfm prepare --to={url} writes at its end') from None
  with parsing(f'{url}/{DESCRIPTION}', 'a description of prepared tokens'):
    description = json.loads(data)
    version = description['version']
    require(version == VERSION, f'it has version {version}, and this program reads {VERSION}')
    splits = [*description['documents']]
    columns = {field: _read_field(folder, description, field) for field in description['fields']}
    corpus = Corpus(
      name=description['name'],
      hash=description['corpus'],
      splits={split: {field: columns[field][split] for field in columns} for split in splits},
      bytes=description['bytes'],
      tokenizers={
        field: PreparedTokenizer(columns[field]['train'].tokenizer, one['spec'])
        for field, one in description['fields'].items()
      },
    )
  sizes = folder.sizes()
  for name, (size, _) in description['digests'].items():
    require(name in sizes, f'{url}/{name} is missing; prepare the tokens again')
    require(
      sizes[name] == size,
      f'{url}/{name} has {sizes[name]:,} bytes and had {size:,}; prepare the tokens again',
    )
  return corpus


def _read_field(folder: Storage, description: Mapping[str, Any], field: str) -> dict[str, TokenColumn]:
  """Returns a field of each split."""
  one = description['fields'][field]
  tokenizer = load(one['tokenizer'])
  columns = {}
  for split in description['documents']:
    counts = one['tokens'][split]
    ids, lengths = (
      [shard_name(split, field, kind, index, len(counts)) for index in range(len(counts))]
      for kind in ('ids', 'lengths')
    )
    columns[split] = TokenColumn(
      folder,
      lengths,
      description['digests'],
      description['documents'][split],
      ShardedIds(folder, ids, counts, token_arrays.id_dtype(tokenizer)),
      one['bytes'][split],
      tokenizer,
    )
  return columns
