"""Prepares documents in many processes, on one machine or many, by Apache Beam, as TFDS does large data sets.

  BeamEngine(Storage('DIR/.beam'), ('--runner=DirectRunner', '--direct_num_workers=2',
                                   '--direct_running_mode=multi_processing'))

So do the runners for many machines (Dataflow, Flink, Spark), whose workers must have this package and see the
files of the source and DIR. Beam counts, groups and distributes; what is written is a function of the
documents alone, so neither the runner nor the number of workers changes a byte.
"""

import contextlib
import dataclasses
import functools
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfm.data.corpus import Corpus, RawDocuments
from tfm.data.document_store import document_key, order_hash
from tfm.data.documents import Survey, changed_error, digest
from tfm.data.preparation import SHARD_BYTES, Engine, Reader, shard_of
from tfm.data.splitting import Rule
from tfm.data.token_shards import Storage
from tfm.errors import importing_extra, require, suggest


with importing_extra('beam'):
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions


@dataclasses.dataclass(frozen=True)
class BeamEngine(Engine):
  """Stores sorted documents as lines of JSON, and runs everything in pipelines.

  Attributes:
    folder: of the documents and of the results of the workers, who must all see it.
    options: Beam's, as on its command lines.

  Raises:
    ValueError: for an unknown option.
  """

  folder: Storage
  options: Sequence[str] = ()
  shard_bytes: int = SHARD_BYTES

  def __post_init__(self):
    known = PipelineOptions([]).get_all_options()
    for word in self.options:
      name = word.partition('=')[0].removeprefix('--').removeprefix('no_')
      require(
        not word.startswith('--') or name in known or name.replace('-', '_') in known,
        f'{word!r} is not an option of Beam; {suggest(name, known)}',
      )

  def store(self, documents):
    rule, survey = documents.assign_splits(functools.partial(self._survey, documents))
    counts = {split: self.count_shards(survey.bytes[split]) for split in documents.splits}
    folder = Storage(f'{self.folder.url}/{survey.hash}')
    with self._pipeline() as pipeline:
      found = _read_documents(pipeline, documents, rule)
      second = self._write_result(found | beam.CombineGlobally(_SurveyFn()), 'survey')
      shards = (
        found
        | 'by content' >> beam.Map(lambda document: ((document[0], digest(*document[1:])), document[1:]))
        | 'copies' >> beam.GroupByKey()
        | 'by shard' >> beam.FlatMap(functools.partial(_assign_shards, counts))
        | 'shards' >> beam.GroupByKey()
        | 'write' >> beam.Map(functools.partial(_write_texts, folder))
        | 'list' >> beam.combiners.ToList()
      )
      written = self._write_result(shards, 'shards')
    if Survey.from_state(self._read_result(second)).hash != survey.hash:
      raise changed_error(documents.name)
    written, splits = {tuple(shard) for shard in self._read_result(written)}, {}
    for split in documents.splits:
      # A shard in which no document falls is not written.
      readers = [
        functools.partial(_read_texts, folder, split, shard) if (split, shard) in written else tuple
        for shard in range(counts[split])
      ]
      splits[split] = {
        field: TextColumn(readers, survey.documents[split], place)
        for place, field in enumerate(documents.fields)
      }
    return Corpus(documents.name, survey.hash, splits, {split: survey.bytes[split] for split in splits})

  def read_shards(self, corpus, split):
    return next(iter(corpus.splits[split].values())).readers

  def map(self, function, items):
    with self._pipeline() as pipeline:
      results = (
        pipeline
        | beam.Create(range(len(items)))
        | beam.Reshuffle()
        | beam.Map(lambda index: function(items[index]))
        | beam.combiners.ToList()
      )
      name = self._write_result(results, 'results')
    return self._read_result(name)

  def close(self):
    if self.folder.sizes():
      self.folder.delete()

  def _survey(self, documents: RawDocuments, rule: Rule) -> Survey:
    with self._pipeline() as pipeline:
      found = _read_documents(pipeline, documents, rule)
      name = self._write_result(found | beam.CombineGlobally(_SurveyFn()), 'survey')
    return Survey.from_state(self._read_result(name))

  @contextlib.contextmanager
  def _pipeline(self) -> Iterator[beam.Pipeline]:
    """A pipeline that runs at the end of the block.

    Raises:
      ValueError: with the sentence of the first ValueError of a worker.
    """
    pipeline = beam.Pipeline(options=PipelineOptions([*self.options]))
    yield pipeline
    try:
      pipeline.run().wait_until_finish()
    except (RuntimeError, ValueError) as error:  # the former has the traceback of a worker as its text
      start = '' if isinstance(error, ValueError) else 'ValueError: '
      if sentence := re.search(rf"^{start}(.*) \[while running '", str(error), re.MULTILINE):
        raise ValueError(sentence[1]) from error
      raise

  def _write_result(self, result: beam.PCollection, what: str) -> str:
    """Writes the one element of a collection, which is JSON; returns the name of the file."""
    folder, name = self.folder, f'{what}-{uuid.uuid4().hex}.json'
    _ = result | f'write {what}' >> beam.Map(lambda one: folder.write(name, json.dumps(one).encode()))
    return name

  def _read_result(self, name: str) -> Any:
    self.folder.wait_until_visible(name)
    return json.loads(self.folder.read(name))


@dataclasses.dataclass(frozen=True)
class TextColumn:
  """A field of the documents of a split, in order.

  Attributes:
    readers: of each shard; documents: their number; place: of the field.
  """

  readers: Sequence[Reader]
  documents: int
  place: int

  def __len__(self):
    return self.documents

  def __iter__(self) -> Iterator[str]:
    return (fields[self.place] for read in self.readers for fields in read())


class _SurveyFn(beam.CombineFn):
  """Adds up documents to a survey, which does not depend on their order."""

  def create_accumulator(self):
    return Survey()

  def add_input(self, survey, document):
    survey.add(*document)
    return survey

  def merge_accumulators(self, surveys):
    return functools.reduce(Survey.merge, surveys, Survey())

  def extract_output(self, survey):
    return survey.state


def _read_documents(pipeline: beam.Pipeline, documents: RawDocuments, rule: Rule) -> beam.PCollection:
  """All documents with their splits; a worker reads some parts of the source."""
  return (
    pipeline
    | 'parts' >> beam.Create(range(len(documents.readers)))
    | 'distribute' >> beam.Reshuffle()
    | 'read' >> beam.FlatMap(lambda index: rule(documents.readers[index]()))
  )


def _assign_shards(
  counts: Mapping[str, int], copies: tuple[tuple[str, bytes], Iterable[tuple[str, ...]]]
) -> Iterator[tuple[tuple[str, int], tuple[bytes, tuple[str, ...]]]]:
  """Yields ((split, shard), (place in the order, fields)) of equal documents."""
  (split, content), values = copies
  for number, fields in enumerate(values, start=1):
    order = order_hash(split, document_key(content, number))
    yield (split, shard_of(order, counts[split])), (order.to_bytes(16), fields)


def _write_texts(
  folder: Storage, documents: tuple[tuple[str, int], Iterable[tuple[bytes, tuple[str, ...]]]]
) -> tuple[str, int]:
  """Writes the documents of a shard in order; returns (split, shard)."""
  (split, shard), values = documents
  lines = [json.dumps(fields, ensure_ascii=False) + '\n' for _, fields in sorted(values)]
  folder.write(f'{split}-{shard:05}.jsonl', ''.join(lines).encode())
  return split, shard


def _read_texts(folder: Storage, split: str, shard: int) -> Iterator[tuple[str, ...]]:
  name = f'{split}-{shard:05}.jsonl'
  folder.wait_until_visible(name)
  lines = folder.read(name).split(b'\n')
  return (tuple(json.loads(line)) for line in lines[:-1])
