"""Tokenizes the texts of a config once, into a folder or a bucket that every process of a run reads.

  tfm prepare --config=configs/lm.py --to=tokens/lm
  tfm train --config=configs/lm.py --workdir=runs/lm --config.data.source='prepared("tokens/lm")'

The run is the same as on the text, and starts without reading it. A process reads the tokens of its own rows
and, once, the length of every document. DIR is a path, or a URL that fsspec knows, such as gs://bucket/folder
(with the package gcsfs). The tokenizer is trained unless config.init_from names a run that has one.

The sources of a mixture, with one tokenizer, go to DIR/NAME:

  tfm prepare --config=… --to=tokens --config.data.source='mix(web=0.7, code=0.3)' \\
    --config.data.sources.web='text("web/*.jsonl.zst")' --config.data.sources.code=stdlib
  tfm train --config=… --workdir=… --config.data.source='mix(web=0.7, code=0.3)' \\
    --config.data.sources.web='prepared("tokens/web")' --config.data.sources.code='prepared("tokens/code")'

A corpus that is too large for one process is tokenized by Apache Beam (the extra [beam]): by workers here,
or on Dataflow, Flink or Spark. The files are the same, byte for byte.

  tfm prepare … --beam_runner=DirectRunner \\
    --beam_options='--direct_num_workers=8 --direct_running_mode=multi_processing'
"""

import contextlib
import shlex

from tfm.errors import require


def arguments(parser):
  add = parser.add_argument
  add('--config', required=True, metavar='FILE[:args]', help='a Python file with get_config(arg)')
  add('--to', required=True, metavar='DIR', help='an empty folder, or one that is not there')
  add(
    '--shard_bytes',
    type=int,
    metavar='N',
    help='bytes of text of a shard, which a worker holds in memory (default: 128 MiB)',
  )
  add('--beam_runner', metavar='NAME', help='a runner of Apache Beam, such as DirectRunner or DataflowRunner')
  add('--beam_options', default='', metavar='FLAGS', help='options of Apache Beam')


def main(args):
  from tfm.config.assemble import Experiment
  from tfm.config.validate import validate_run
  from tfm.data import cache, pipeline, preparation
  from tfm.data.sources.prepared import Prepared
  from tfm.runs.init_from import load_tokenizers
  from tfm.runs.load import checkpoint_metadata
  from tfm.training.progress_line import print_status

  require(
    args.shard_bytes is None or args.shard_bytes >= 1, f'--shard_bytes={args.shard_bytes} must be at least 1'
  )
  experiment, data = Experiment(args.config), args.config.data
  validate_run(experiment, None)
  preparation.validate_preparation(experiment.source, args.to)
  tokenizer, source_tokenizer = experiment.tokenizer, experiment.source_tokenizer
  if args.config.init_from:
    tokenizer, source_tokenizer = load_tokenizers(checkpoint_metadata(args.config.init_from))
  with contextlib.closing(make_engine(args)) as engine:
    corpus = experiment.source.open_corpus(engine.store)
    text = pipeline.train_tokenizers(corpus, tokenizer, cache.directory(), source_tokenizer)
    specs = {field: data.tokenizer for field in corpus.fields}
    if data.source_tokenizer:
      specs['source'] = data.source_tokenizer
    written = preparation.prepare_tokens(text, specs, args.to, engine)
  for name, description in written.items():
    counts = ', '.join(f'{split} {count:,}' for split, count in description['documents'].items())
    print_status(f'{preparation.folder_of(args.to, name).url}: documents {counts}')
    field = f'sources.{name}' if name else 'source'
    spec = Prepared(preparation.folder_of(args.to, name).url, 'source' in corpus.fields).spec
    print(f'--config.data.{field}="{spec}"')


def make_engine(args):
  """The engine that the flags name.

  Raises:
    ValueError: if Apache Beam is not installed, or has no such option.
  """
  from tfm.data import cache
  from tfm.data.preparation import SHARD_BYTES, InProcess
  from tfm.data.token_shards import Storage

  shard_bytes = args.shard_bytes or SHARD_BYTES
  if not args.beam_runner:
    require(not args.beam_options, f'--beam_options={args.beam_options!r} requires --beam_runner=NAME')
    return InProcess(cache.directory(), shard_bytes)
  from tfm.data.beam_engine import BeamEngine

  options = [f'--runner={args.beam_runner}', *shlex.split(args.beam_options)]
  return BeamEngine(Storage(f'{args.to}/.beam'), options, shard_bytes)
