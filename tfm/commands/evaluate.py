"""Evaluates a run on a whole split, JSON on stdout; or a decoder in rows of other lengths, as a table.

  tfm evaluate --workdir=runs/lm --step=best --split=test
  tfm evaluate --workdir=runs/en-de --split=test --metric='bleu(lowercase=True)' --metric=chrf
  tfm evaluate --workdir=runs/lm --lengths=64,128,256,512,1024 --protocol=nonoverlapping --protocol=sliding --stride=32

`loss` is in nats per token, `perplexity` per token, `bits_per_byte` the whole loss in bits over the
bytes of the text, `accuracy` the share of tokens that were the likeliest, `tokens` how many counted.
Of classes there are `loss` and `accuracy` over what was classified, and `f1`, the mean over classes of theirs.
Of answers `loss` and the rest are over their tokens, and `exact` is the share of texts whose answers were all right.

An encoder-decoder also writes a target for every source, as config.decoding says; they are kept in
DIR/hypotheses, and compared with the references by each --metric: bleu(lowercase, tokenize),
tokenized_bleu(language, lowercase, split_compounds), chrf(words), rouge, exact.

With --lengths the documents of the split are read one after another, as the packing `concat` has them, in rows of each
length, and the same tokens are predicted at all of them. `nonoverlapping` cuts the text into rows, so that the first
tokens of each have next to no context; `sliding` counts the last --stride tokens of each row only, so that all have
length - stride tokens of context. --targets bounds how many are predicted, taken from all over the split in pieces of
the least common multiple of the lengths. A length that the model cannot read is `impossible`, with the reason.
DIR/length.csv has the table, length.json also the loss by position, length.png both as curves; each run renews them.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Sequence

from tfm import spec
from tfm.commands.inspect import new_table, wide_console
from tfm.data.progress import track
from tfm.errors import require
from tfm.evaluation import length_picture
from tfm.evaluation.length import PROTOCOLS, LengthRecord
from tfm.evaluation.text_metrics import METRICS
from tfm.runs import load


COLUMNS = 'protocol', 'stride', 'length', 'tokens', 'loss', 'perplexity', 'bits_per_byte', 'impossible'


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='of a run that tfm train made')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--average',
    type=int,
    metavar='N',
    help='average the last N checkpoints (default: config.decoding.average_checkpoints)',
  )
  add('--split', default='validation', metavar='NAME', help='train, validation or test (default: validation)')
  add(
    '--metric',
    action='append',
    metavar='SPEC',
    help='of written targets; may be given several times (default: bleu and chrf)',
  )
  add('--lengths', metavar='N,N,…', help='of rows to read the split in, of a decoder')
  add(
    '--protocol',
    action='append',
    metavar='|'.join(PROTOCOLS),
    help='of --lengths; may be given several times (default: nonoverlapping)',
  )
  add(
    '--stride',
    type=int,
    metavar='N',
    help='tokens that count of a sliding window (default: half the shortest length)',
  )
  add(
    '--targets', type=int, metavar='N', help='predict at most so many tokens of the split (default: 0, all)'
  )


def main(args):
  if args.lengths is not None:
    return lengths(args)
  for flag in ('protocol', 'stride', 'targets'):
    require(
      getattr(args, flag) is None,
      f'--{flag} is of --lengths, which is not given; such as --lengths=64,128,256',
    )
  metrics = {text: spec.build_from_table(text, METRICS) for text in args.metric or ('bleu', 'chrf')}
  loaded = load.load(args.workdir, args.step, args.average)
  writes = hasattr(loaded.model, 'encode')
  require(
    writes or args.metric is None,
    f'--metric={(args.metric or [""])[0]} compares written targets, and a decoder has '
    'no references to compare with; leave it out',
  )
  values = load.evaluate(loaded, args.split)
  if writes:
    pairs, found = load.translate_split(loaded, args.split)
    hypotheses = dict(track(found, f'translating {args.split}', len(pairs)))
    rows = [
      dict(source=source, reference=reference, hypothesis=hypotheses[i][0].text, score=hypotheses[i][0].score)
      for i, (source, reference) in enumerate(pairs)
    ]
    kept = pathlib.Path(args.workdir) / 'hypotheses' / f'{args.split}-{loaded.step}.jsonl'
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')
    for text, metric in metrics.items():
      found = metric([row['hypothesis'] for row in rows], [row['reference'] for row in rows])
      # Under the words that asked for it: bleu and bleu(lowercase=True) are two numbers.
      values |= {name.replace(text.partition('(')[0], text, 1): value for name, value in found.items()}
    values |= dict(hypotheses=str(kept))
  print(json.dumps(dict(step=loaded.step, split=args.split, **values), indent=2))


def lengths(args):
  """`--lengths`: measures, prints the table, and keeps it."""
  require(
    args.metric is None,
    f'--metric={(args.metric or [""])[0]} compares written targets, and --lengths predicts a '
    'text; leave one out',
  )
  words = args.lengths.split(',')
  require(
    all(word.strip().isdecimal() and int(word) for word in words),
    f'--lengths={args.lengths} is no list of numbers from 1 on; one such as 64,128,256 would do',
  )
  protocols = list(dict.fromkeys(args.protocol or ['nonoverlapping']))
  require(
    args.stride is None or 'sliding' in protocols,
    f'--stride={args.stride} is of --protocol=sliding, which is not given; give it or leave the stride out',
  )
  loaded = load.load(args.workdir, args.step, args.average)
  records = load.evaluate_lengths(
    loaded, args.split, sorted({int(word) for word in words}), protocols, args.stride, args.targets or 0
  )
  trained = loaded.config.data.length
  wide_console().print(table(records, trained))
  folder = pathlib.Path(args.workdir)
  keep(records, dict(step=loaded.step, split=args.split, trained=trained), folder)
  length_picture.draw(
    records,
    trained,
    f'{args.workdir}, step {loaded.step}: {args.split} in rows of other lengths than '
    f'{trained}, the length of training',
    folder / 'length.png',
  )
  print(f'{folder}: length.csv, length.json and the curves, length.png')


def table(records: Sequence[LengthRecord], trained: int):
  """One row for each record."""
  made = new_table(
    f'trained in rows of {trained} tokens',
    'protocol',
    '>stride',
    '>length',
    '>× trained',
    '>loss',
    '>perplexity',
    '>bits per byte',
    '>tokens',
    '',
  )
  for r in records:
    values = (
      [''] * 4
      if r.impossible
      else [f'{r.loss:.4f}', f'{r.perplexity:.4g}', f'{r.bits_per_byte:.4f}', f'{r.tokens:,}']
    )
    made.add_row(r.protocol, str(r.stride), str(r.length), f'{r.length / trained:.4g}', *values, r.impossible)
  return made


def keep(records: Sequence[LengthRecord], about: dict, folder: pathlib.Path) -> None:
  """Writes length.csv and length.json."""
  with (folder / 'length.csv').open('w', encoding='utf-8', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows([getattr(r, name) for name in COLUMNS] for r in records)
  (folder / 'length.json').write_text(
    json.dumps(about | dict(records=[dataclasses.asdict(r) for r in records]), indent=2) + '\n',
    encoding='utf-8',
  )
