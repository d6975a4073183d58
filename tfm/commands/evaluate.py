"""Evaluates a run on a whole split, as JSON on stdout; or a decoder at several row lengths, as a table.

  tfm evaluate --workdir=runs/lm --step=best --split=test
  tfm evaluate --workdir=runs/en-de --split=test --metric='bleu(lowercase=True)' --metric=chrf
  tfm evaluate --workdir=runs/lm --lengths=64,128,256,512 --protocol=sliding --stride=32

`loss` is in nats per token, `perplexity` per token, `bits_per_byte` the total loss in bits per byte of text,
`accuracy` the fraction of tokens that were the argmax, `tokens` the number of counted tokens. Answers have
the metrics of their tokens, and `exact`, the fraction of texts with only correct answers.

Classifiers have `loss`, `accuracy` and `f1`, averaged over classes. The precision, recall and F1 of each
class are shown on stderr and written to DIR/classes/SPLIT-STEP.csv, the confusion matrix is drawn beside it
as SPLIT-STEP.png; --to=DIR2 writes both there.

Of a mixture the metrics are means over the sources by their weights, beside the `loss/SOURCE` of each source;
--split=test/SOURCE evaluates one.

--config.model.kernel=auto evaluates with another kernel than that of the training,
--config.mesh.data=1 --config.mesh.fsdp=-1 divides the parameters among all devices; the default is the mesh
of the training if it fits. Several processes evaluate together, as in `tfm train`.

--slices=N prints where the loss of a decoder lies: in targets that end an n-gram of N tokens which their row
had before (repeated) and in those that do not (new); in repeated n-grams that training has at most 1,250
times (ar_hits: those of Zoology for N=2) and in all others; in rare, medium and frequent tokens; and by
position.

An encoder-decoder also generates a target for every source with config.decoding. The targets are written to
DIR/hypotheses and compared with the references by each --metric: bleu(lowercase, tokenize),
tokenized_bleu(language, lowercase, split_compounds), chrf(words), rouge, exact. --against=FILE, a file of
such targets, compares the two systems by sacreBLEU's paired bootstrap over sentences.

With --lengths the documents of the split are read consecutively, as by the packing `concat`, in rows of each
length, and the same tokens are predicted at all lengths. `nonoverlapping` splits the text into rows, so that
the first tokens of each have almost no context; `sliding` counts only the last --stride tokens of each row,
so that all have length - stride tokens of context. --targets limits the number of predicted tokens, taken
evenly from the split in spans of the least common multiple of the lengths. Lengths that the model cannot read
are reported as `impossible`. DIR/length.csv has the table, length.json also the loss by position, length.png
the curves; each call overwrites them.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfm import spec
from tfm.analysis.console import new_table, wide_console
from tfm.commands.cli import add_process_flags, add_run_flags, assign_overrides, validate_flag
from tfm.config.names import SPLIT, OneOf
from tfm.data.progress_bar import track
from tfm.errors import MissingExtra, require
from tfm.evaluation.text_metrics import METRICS, Metric
from tfm.training.atomic_files import write_atomically


if TYPE_CHECKING:
  from tfm.evaluation.length_extrapolation import LengthRecord
  from tfm.runs import load

COLUMNS = 'protocol', 'stride', 'length', 'tokens', 'loss', 'perplexity', 'bits_per_byte', 'impossible'
PROTOCOL = OneOf('nonoverlapping', 'evaluation.length_extrapolation:PROTOCOLS')
OVERRIDES = '--config.'  # --config.model.kernel=NAME, --config.mesh.fsdp=N


def arguments(parser):
  add = parser.add_argument
  add_run_flags(parser)
  add(
    '--split',
    default='validation',
    metavar='NAME',
    help='train, validation or test; of one source of a mixture, test/SOURCE (default: validation)',
  )
  add(
    '--metric',
    action='append',
    metavar='SPEC',
    help='metric of generated targets; repeatable (default: bleu and chrf)',
  )
  add(
    '--against',
    metavar='FILE',
    help='targets of another run, DIR/hypotheses/SPLIT-STEP.jsonl, to be tested against these',
  )
  add('--lengths', metavar='N,N,…', help='row lengths at which to evaluate a decoder')
  add(
    '--protocol',
    action='append',
    metavar='nonoverlapping|sliding',
    help='protocol of --lengths; repeatable (default: nonoverlapping)',
  )
  add(
    '--stride',
    type=int,
    metavar='N',
    help='counted tokens of a sliding window (default: half the shortest length)',
  )
  add(
    '--to', metavar='DIR', help="folder of a classifier's table and picture (default: classes in --workdir)"
  )
  add('--targets', type=int, metavar='N', help='maximum number of predicted tokens (default: 0, all)')
  add(
    '--slices',
    type=int,
    metavar='N',
    help='the loss by kinds of targets, with n-grams of N tokens, such as 2',
  )
  add_process_flags(parser)


def validate(args):
  args.metrics = build_metrics(args.metric or ())
  validate_flag('split', SPLIT, args.split.partition('/')[0])
  for protocol in args.protocol or ():
    validate_flag('protocol', PROTOCOL, protocol)


def main(args):
  from tfm.objectives.classification import Classification
  from tfm.parallel import processes
  from tfm.runs import load
  from tfm.training.progress_line import print_status

  if args.slices is not None:
    return evaluate_loss_slices(args)
  if args.lengths is not None:
    return evaluate_lengths(args)
  for flag in ('protocol', 'stride', 'targets'):
    require(getattr(args, flag) is None, f'--{flag} requires --lengths, such as --lengths=64,128,256')
  metrics = args.metrics
  loaded = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  is_encoder_decoder = hasattr(loaded.model, 'encode')
  require(
    is_encoder_decoder or args.metric is None,
    f'--metric={(args.metric or [""])[0]} requires an encoder-decoder, which generates targets; remove it',
  )
  if is_encoder_decoder:
    metrics = metrics or build_metrics(('bleu', 'chrf'))
  others = read_others(args.against, metrics) if args.against is not None else None
  require(
    is_encoder_decoder or others is None,
    f'--against={args.against} requires an encoder-decoder, which generates targets; remove it',
  )
  is_classifier = isinstance(loaded.experiment.objective, Classification)
  require(
    is_classifier or args.to is None,
    f'--to={args.to} is the folder for the scores of classes, and --workdir={args.workdir} holds no '
    'classifier; remove it',
  )
  evaluation = load.evaluate(loaded, args.split)
  values = evaluation.metrics
  name = f'{args.split.replace("/", "-")}-{loaded.step}'
  if is_classifier and processes.is_main_process():
    title = f'{args.workdir}, step {loaded.step}: {args.split}'
    folder = pathlib.Path(args.to or pathlib.Path(args.workdir) / 'classes')
    try:
      values |= dict(classes=write_classes(evaluation, title, folder / f'{name}.csv'))
    except MissingExtra as error:
      print_status(f'no scores of single classes: {error}')
  if is_encoder_decoder:
    pairs, results = load.translate_split(loaded, args.split)
    references = [reference for _, reference in pairs]
    require(
      others is None or references == [row['reference'] for row in others],
      f'--against={args.against} has other references than the {len(pairs):,} of --split={args.split}; '
      'evaluate that run on the same split',
    )
    hypotheses = dict(track(results, f'translating {args.split}', len(pairs)))
    if not processes.is_main_process():
      return  # it writes for all
    rows = [
      dict(source=source, reference=reference, hypothesis=hypotheses[i][0].text, score=hypotheses[i][0].score)
      for i, (source, reference) in enumerate(pairs)
    ]
    path = pathlib.Path(args.workdir) / 'hypotheses' / f'{name}.jsonl'
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows))
    own = [row['hypothesis'] for row in rows]
    for text, metric in metrics.items():
      results = metric(own, references)
      if others is not None:
        results |= metric.compare(own, [row['hypothesis'] for row in others], references)
      # Keyed by the whole spec, so that bleu and bleu(lowercase=True) are separate.
      values |= {name.replace(text.partition('(')[0], text, 1): value for name, value in results.items()}
    values |= dict(hypotheses=str(path))
  print(json.dumps(dict(step=loaded.step, split=args.split, **values), indent=2))


def read_others(file: str, metrics: Mapping[str, Metric]) -> list[dict]:
  """The targets of another run, with their references.

  Raises:
    ValueError: for a file without them, and for a metric that cannot compare two systems.
  """
  for text, metric in metrics.items():
    require(
      hasattr(metric, 'compare'),
      f'--metric={text} has no test of two systems, which --against needs; use bleu, tokenized_bleu or chrf',
    )
  try:
    with open(file, encoding='utf-8') as lines:  # texts may hold other ends of lines, at which str splits
      rows = [json.loads(line) for line in lines]
    return [dict(hypothesis=row['hypothesis'], reference=row['reference']) for row in rows]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f'--against={file} is no file of targets ({error}); tfm evaluate writes them to '
      'DIR/hypotheses/SPLIT-STEP.jsonl'
    ) from error


def evaluate_loss_slices(args):
  """`--slices`: evaluates, and prints JSON."""
  from tfm.parallel import processes
  from tfm.runs import load
  from tfm.runs.slices import evaluate_slices

  for flag in ('metric', 'against', 'lengths', 'protocol', 'stride', 'targets', 'to'):
    require(getattr(args, flag) is None, f'--{flag} does not go with --slices; remove one of them')
  loaded = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  length = loaded.config.data.length
  require(
    args.slices <= length,
    f'--slices={args.slices} exceeds the {length} tokens of a row; use 2, or a few more',
  )
  slices = evaluate_slices(loaded, args.split, args.slices)
  if processes.is_main_process():
    found = [dataclasses.asdict(part) for part in slices]
    print(json.dumps(dict(step=loaded.step, split=args.split, ngram=args.slices, slices=found), indent=2))


def write_classes(evaluation: load.Evaluation, title: str, file: pathlib.Path) -> str:
  """Shows the scores of every class on stderr, and writes them and the confusion matrix; returns the file.

  Raises:
    MissingExtra: without the packages of the extra [plots].
  """
  from tfm.evaluation import class_report

  matrix, names = evaluation.confusion_matrix, evaluation.class_names
  scores = class_report.score_classes(matrix, names)
  file.parent.mkdir(parents=True, exist_ok=True)
  class_report.write_scores(scores, file)
  class_report.draw_confusion_matrix(matrix, names, title, file.with_suffix('.png'))
  table = new_table(title, 'class', '>precision', '>recall', '>F1', '>items')
  for score in scores:
    ratios = map(class_report.format_score, (score.precision, score.recall, score.f1))
    table.add_row(score.name, *ratios, f'{score.items:g}')
  wide_console(stderr=True).print(table)
  return str(file)


def build_metrics(specs: Sequence[str]) -> dict[str, Metric]:
  """The metrics of generated texts by their specs."""
  return {text: spec.build_from_table(text, METRICS) for text in specs}


def evaluate_lengths(args):
  """`--lengths`: evaluates, prints the table, and writes the files."""
  from tfm.evaluation import length_plot  # first: without the extra [plots] nothing is evaluated
  from tfm.parallel import processes
  from tfm.runs import load

  require(args.to is None, f'--to={args.to} is for classifiers; --lengths writes into --workdir')
  require(args.against is None, '--against does not go with --lengths; remove one of them')
  require(
    args.metric is None,
    f'--metric={(args.metric or [""])[0]} compares generated targets and --lengths predicts a text; '
    'remove one of them',
  )
  words = args.lengths.split(',')
  require(
    all(word.strip().isdecimal() and int(word) for word in words),
    f'--lengths={args.lengths} is no list of numbers from 1 on; use, for example, 64,128,256',
  )
  protocols = list(dict.fromkeys(args.protocol or ['nonoverlapping']))
  require(
    args.stride is None or 'sliding' in protocols,
    f'--stride={args.stride} requires --protocol=sliding; add it or remove --stride',
  )
  loaded = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  records = load.evaluate_lengths(
    loaded, args.split, sorted({int(word) for word in words}), protocols, args.stride, args.targets or 0
  )
  if not processes.is_main_process():
    return  # it writes for all
  trained = loaded.config.data.length
  wide_console().print(make_table(records, trained))
  folder = pathlib.Path(args.workdir)
  write_records(records, dict(step=loaded.step, split=args.split, trained=trained), folder)
  length_plot.draw(
    records,
    trained,
    f'{args.workdir}, step {loaded.step}: {args.split} at several row lengths; training length {trained}',
    folder / 'length.png',
  )
  print(f'{folder}: length.csv, length.json and the curves, length.png')


def make_table(records: Sequence[LengthRecord], trained: int):
  """One row for each record."""
  result = new_table(
    f'training length {trained}',
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
    result.add_row(
      r.protocol, str(r.stride), str(r.length), f'{r.length / trained:.4g}', *values, r.impossible
    )
  return result


def write_records(records: Sequence[LengthRecord], about: dict, folder: pathlib.Path) -> None:
  """Writes length.csv and length.json."""
  table = io.StringIO(newline='')
  writer = csv.writer(table)
  writer.writerow(COLUMNS)
  writer.writerows([getattr(r, name) for name in COLUMNS] for r in records)
  write_atomically(folder / 'length.csv', table.getvalue())
  found = about | dict(records=[dataclasses.asdict(r) for r in records])
  write_atomically(folder / 'length.json', json.dumps(found, indent=2) + '\n')
