"""Attacks what users write: every config field, every argument of every variant, damaged files, and damaged
published checkpoints of every family.

  make fuzz                                     # 2,000 cases
  python -m tests.fuzz --cases=500 --seed=3     # another sample

A case must be accepted, or rejected by one sentence (a ValueError of one line that is short enough to read).
Anything else is a finding: another exception, a message of several lines, more than 10 seconds, or a damaged
checkpoint that is accepted silently. The exit status is 1 if there is one.
"""

import argparse
import collections
import contextlib
import gzip
import inspect
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator

import jax
import numpy as np
import safetensors.numpy
from PIL import Image

import tfm
from tests import fuzz_checkpoints
from tests.commands.test_import import write_tokenizer
from tests.data import marian_folder
from tests.hf.test_export import LLAMA, build
from tfm import spec
from tfm.config import validate
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.overlay import assign_text, complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import default_config, leaves
from tfm.conformance import collect
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import abridge, read_json_object
from tfm.hf import export
from tfm.hf.tensor_files import save_tensors
from tfm.runs import load
from tfm.studies import store
from tfm.studies.study import load_study
from tfm.training import checkpoint, metrics


SECONDS = 10
MAX_MESSAGE = 1500
# What is written for a field of a config, one a word.
VALUES = (
  *'0 -1 1 2 3 7 1.5 -0.5 1e999 -1e999 1e-300 1e38 nan inf True none None () (1,) {} 10**9'.split(),
  *'1000000000000 -9223372036854775809 9223372036854775808'.split(),
  *'"x" (((( ) a(b a(b=1) rope causal ~causal ~full * ** ['.split(),
  *'../.. /dev/zero /etc/passwd $HOME {0} %s é 漢 __import__("os") f"{1}" 1e400 True&False'.split(),
  *('', ' ', "'", '"', '[1, 2]', '{1: 2}', 'causal & ~causal', 'a & b | ~c', 'lambda: 0', '1 if 1 else 2'),
  *('x' * 10_000, '(' * 10_000, '\x00', '\ud800'),
)
# What is written for an argument of a variant.
LITERALS = (
  *'0 -1 1 2 5 1000000000 -1000000000 1e999 -1e999 1e-300 1e38 0.5 1.5 -0.5 True False None () (1,)'.split(),
  *"'' 'x' 'rope' [1] {} 16777216 16777217".split(),
  *('(0, -1)', '(1, 2, 3)', "('a', 'b')", f"'{'x' * 1000}'"),
)
JUNK = b'\0', b'[', b'{', b'"', b'\xff', b'9' * 400, b'\n'
NUMBERS = b'-1', b'0', b'1e999', b'1000000000000', b'null', b'[]', b'"x"', b'true', b'NaN'
WHOLE = b'', b'[]', b'{}', b'3', b'null', b'"x"', b'\xef\xbb\xbf', b'\xff\xfe', b'[' * 100_000


def build_config(path: str, text: str) -> None:
  """Everything that happens to a config before data is read, and the shapes of its parameters."""
  config = complete(dict(model=dict(layers=2, width=32, heads=4), data=dict(length=16)))
  assign_text(config, path, text)
  experiment = Experiment(resolve_config(config))
  validate.validate_run(experiment, jax.device_count())
  validate.validate_parts(experiment)


def field_cases() -> Iterator[tuple[str, Callable]]:
  for path, _ in leaves(default_config()):
    for text in VALUES:
      yield f'config.{path}={text[:60]!r}', lambda path=path, text=text: build_config(path, text)


# The config field that each slot fills.
FIELDS = dict(
  optimizer='optimizer.name', objective='objective', packing='data.packing', source='data.source',
  tokenizer='data.tokenizer',
)  # fmt: skip


def argument_cases() -> Iterator[tuple[str, Callable]]:
  for slot, (package, base) in collect.ALL_SLOTS.items():
    given = {*inspect.signature(base).parameters, *collect.SLOTS, 'parent', 'name'}
    for name in spec.variant_names(package):
      kind = spec.find_variant(name, package, base)
      for argument in inspect.signature(kind).parameters:
        if argument in given:
          continue
        for literal in LITERALS:
          text = f'{name}({argument}={literal})'
          if slot == 'measure':
            case = lambda text=text, package=package, base=base: spec.build(text, package, base)
          else:
            case = lambda path=FIELDS.get(slot, f'model.{slot}'), text=text: build_config(path, text)
          yield f'{slot} {text[:80]}', case


def damage(data: bytes, draw: random.Random) -> bytes:
  """A damaged copy: cut, flipped, filled, repeated or replaced."""
  at = draw.randrange(len(data) + 1)
  kind = draw.randrange(7)
  if kind == 0:
    return data[:at]
  if kind == 1:
    flipped = bytearray(data)
    for _ in range(draw.choice([1, 8, 64])):
      flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(flipped)
  if kind == 2:
    return data[:at] + draw.choice(JUNK) * draw.choice([1, 50_000])
  if kind == 3:
    return data[at:] + data[:at]
  if kind == 4:
    return draw.choice(WHOLE)
  if kind == 5:
    return data[:at] + data[at + draw.randrange(1, 50) :]
  places = [i for i in range(len(data)) if data[i : i + 1].isdigit()][:20_000] or [at % max(len(data), 1)]
  place = draw.choice(places)
  return data[:place] + draw.choice(NUMBERS) + data[place + 1 :]


def write_files(folder: pathlib.Path) -> dict[str, tuple[pathlib.Path, Callable]]:
  """Kind → an intact file, and what reads it."""
  config, _, params = build(LLAMA, 257)
  export.to_pretrained(config, params, str(folder / 'llama'), 'llama', 257)
  lines = [f'line {i} of many' for i in range(1500)]
  (folder / 'a.txt').write_text('\n'.join(lines))
  (folder / 'a.jsonl').write_text(''.join(json.dumps(dict(text=line)) + '\n' for line in lines))
  (folder / 'a.tsv').write_text(''.join(f'{"ab"[i % 2]}\ttext number {i}\n' for i in range(300)))
  (folder / 'a.csv').write_text('text,label\n' + ''.join(f'text {i},{"ab"[i % 2]}\n' for i in range(300)))
  (folder / 'config.json').write_text(json.dumps(default_config().to_dict()))
  (folder / 'config.py').write_text('def get_config(arg):\n  return dict(seed=3, data=dict(length=16))\n')
  (folder / 'study.py').write_text(
    'from tfm.studies.study import Study\ndef get_study(arg):\n'
    "  return Study(question='?', config={}, arms=dict(a={}, b={'model.layers': 1}), base='a')\n"
  )
  rows = (json.dumps(dict(step=i, split='train', loss=1.5)) + '\n' for i in range(50))
  (folder / 'metrics.jsonl').write_text(''.join(rows))
  made = dict(machine='2 cores', versions='jax', date='2026-11-27')
  rates = dict(rungs={}, diverged={'0.1': 'NaN'}, reached={'0.01': 1.5})
  arm = dict(
    name='a', error=None, unmeasured={}, made=[made], rates=rates, rate=0.01, diverged={}, seconds=9.5
  )
  (folder / 'arm.json').write_text(json.dumps(arm, indent=2))
  value = dict(metric='score', value=0.5, x=3, why='')
  (folder / 'measured.json').write_text(json.dumps({'induction()': [value]}, indent=2))
  (folder / 'tokenizer').mkdir()
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', '##b']
  (folder / 'tokenizer/vocab.txt').write_text('\n'.join(words))
  (folder / 'tokenizer/config.json').write_text(json.dumps(dict(vocab_size=7, sep_token_id=3)))
  (folder / 'tokenizer/tokenizer_config.json').write_text(json.dumps(dict(sep_token='[SEP]')))
  (folder / 'bpe').mkdir()
  write_tokenizer(folder / 'bpe')
  (folder / 'bpe/config.json').write_text(json.dumps(dict(vocab_size=257, eos_token_id=0)))
  (folder / 'marian').mkdir()
  marian_folder.write(folder / 'marian')
  (folder / 'a.conll').write_text(''.join(f'the DET\nword{i} NOUN\n\n' for i in range(300)))
  (folder / 'pairs.tsv').write_text(''.join(f'source {i}\ttarget {i}\n' for i in range(300)))
  (folder / 'a.txt.gz').write_bytes(gzip.compress('\n'.join(lines).encode(), mtime=0))
  image = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
  for i in range(60):
    (folder / f'images/{"ab"[i % 2]}').mkdir(parents=True, exist_ok=True)
    Image.fromarray(image[i]).save(folder / f'images/{"ab"[i % 2]}/{i}.png')
  files = safetensors.numpy.load_file(folder / 'llama/model.safetensors')
  shutil.copytree(folder / 'llama', folder / 'parts', ignore=lambda *_: ['model.safetensors'])
  save_tensors(folder / 'parts', files.items(), list(files), max_bytes=20_000)
  with contextlib.closing(checkpoint.Checkpoints(folder / 'run', keep=1)) as checkpoints:
    run = dict(corpus='', tokenizer=None, source_tokenizer=None, data=None, config=config.to_dict())
    checkpoints.save_params(params, run | dict(tokenizer=Experiment(config).tokenizer.state()))
  arrays = max((folder / 'run').rglob('*'), key=lambda path: path.is_file() and path.stat().st_size)

  def source(text):
    def read(path):
      with tempfile.TemporaryDirectory() as cache:
        spec.build(text.format(path), tfm.data.sources, Source).prepare(pathlib.Path(cache))

    return read

  def tokenizer(path):
    name = 'marian' if path.parent.name == 'marian' else 'published'
    spec.build(f'{name}({str(path.parent)!r})', tfm.data.tokenizers, Tokenizer).train(()).encode('a b')

  def pretrained(path):
    tfm.from_pretrained(str(path.parent))

  def saved_run(path):
    load.load(str(folder / 'run'))

  return {
    'config.json of a published model': (folder / 'llama/config.json', pretrained),
    'safetensors': (folder / 'llama/model.safetensors', pretrained),
    'text': (folder / 'a.txt', source('text("{}")')),
    'JSON lines': (folder / 'a.jsonl', source('text("{}")')),
    'TSV': (folder / 'a.tsv', source('labelled("{}")')),
    'CSV': (folder / 'a.csv', source('table("{}", "text", "label")')),
    'config of a run': (folder / 'config.json', lambda path: resolve_config(load_config(str(path)))),
    'config': (folder / 'config.py', lambda path: resolve_config(load_config(str(path)))),
    'study': (folder / 'study.py', lambda path: load_study(str(path))),
    'metrics': (folder / 'metrics.jsonl', metrics.read),
    'record of an arm': (folder / 'arm.json', lambda path: store.read_arm(path.parent)),
    'values of measures': (folder / 'measured.json', lambda path: store.read_measured(path.parent)),
    'JSON': (folder / 'tokenizer/config.json', read_json_object),
    'vocabulary': (folder / 'tokenizer/vocab.txt', tokenizer),
    'config of a tokenizer': (folder / 'tokenizer/config.json', tokenizer),
    'tokenizer_config.json': (folder / 'tokenizer/tokenizer_config.json', tokenizer),
    'tokenizer.json': (folder / 'bpe/tokenizer.json', tokenizer),
    'table of Marian': (folder / 'marian/vocab.json', tokenizer),
    'SentencePiece': (folder / 'marian/source.spm', tokenizer),
    'CoNLL': (folder / 'a.conll', source('tagged("{}")')),
    'pairs': (folder / 'pairs.tsv', source('parallel("{}")')),
    'gzip': (folder / 'a.txt.gz', source('text("{}")')),
    'image': (folder / 'images/a/0.png', source(f'folder({str(folder / "images")!r}, size=4)')),
    'index of safetensors': (folder / 'parts/model.safetensors.index.json', pretrained),
    'metadata of a run': (folder / 'run/checkpoints/0/run/metadata', saved_run),
    'digests of a run': (folder / 'run/checkpoints/0/digests.json', saved_run),
    'arrays of a run': (arrays, saved_run),
  }


def file_cases(folder: pathlib.Path, seed: int, count: int) -> Iterator[tuple[str, Callable]]:
  intact = {kind: (path, path.read_bytes(), read) for kind, (path, read) in write_files(folder).items()}
  for path, _, read in intact.values():
    read(path)  # all are readable as they are
  for i in range(count):
    # One generator a case: the bytes of some files differ from run to run, and with them how much is drawn.
    draw = random.Random(f'file {seed} {i}')
    kind = draw.choice(sorted(intact))
    path, data, read = intact[kind]

    def case(path=path, data=data, read=read, damaged=damage(data, draw)):
      path.write_bytes(damaged)
      try:
        read(path)
      finally:
        path.write_bytes(data)
      if path.is_relative_to(folder / 'run') and damaged != data:
        raise fuzz_checkpoints.Silent('a file of a checkpoint is not what was saved')

    yield f'{kind}, damage {i}', case


class Hang(BaseException):
  """A case took longer than `SECONDS`."""


def run(case: Callable) -> str:
  """'accepted' or 'rejected', or what is wrong."""

  def interrupt(*_):
    raise Hang

  signal.signal(signal.SIGALRM, interrupt)
  signal.alarm(SECONDS)
  try:
    case()
    return 'accepted'
  except (ValueError, OSError) as error:
    message = abridge(str(error))
    if '\n' in message.strip() or len(message) > MAX_MESSAGE or len(message.split()) < 4:
      return f'unreadable message of {len(message):,} characters: {message[:200]!r}'
    return 'rejected'
  except Hang:
    return f'hang: more than {SECONDS} s'
  except Exception as error:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f'{type(error).__name__}: {str(error)[:150]!r} at {last.filename}:{last.lineno}'
  finally:
    signal.alarm(0)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--cases', type=int, default=2000)
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args(argv)
  draw, started, counts, findings = random.Random(args.seed), time.perf_counter(), collections.Counter(), []
  os.environ.setdefault('TFM_CACHE', tempfile.mkdtemp())
  with tempfile.TemporaryDirectory() as folder:
    each = args.cases // 5
    cases = draw.sample(list(field_cases()), args.cases - 3 * each) if args.cases else []
    cases += draw.sample(list(argument_cases()), each)
    cases += file_cases(pathlib.Path(folder), args.seed, each)
    cases += fuzz_checkpoints.cases(pathlib.Path(folder), args.seed, each)
    for number, (name, case) in enumerate(cases, start=1):
      outcome = run(case)
      kind = outcome if outcome in ('accepted', 'rejected') else 'finding'
      counts[kind] += 1
      if kind == 'finding':
        findings.append(f'{name}: {outcome}')
        print(findings[-1], flush=True)
      if number % 100 == 0:
        seconds = time.perf_counter() - started
        left = seconds / number * (len(cases) - number)
        print(f'{number} of {len(cases)} cases, {left:.0f} s left', file=sys.stderr, flush=True)
  print(f'{dict(counts)} of {len(cases)} cases, seed {args.seed}, {time.perf_counter() - started:.0f} s')
  return 1 if findings else 0


if __name__ == '__main__':
  logging.disable()
  sys.exit(main())
