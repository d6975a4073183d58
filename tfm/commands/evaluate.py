"""Evaluates a run on a whole split; JSON on stdout.

  tfm evaluate --workdir=runs/lm --step=best --split=test
  tfm evaluate --workdir=runs/en-de --split=test --metric='bleu(lowercase=True)' --metric=chrf

`loss` is in nats per token, `perplexity` per token, `bits_per_byte` the whole loss in bits over the
bytes of the text, `accuracy` the share of tokens that were the likeliest, `tokens` how many counted.
Of classes there are `loss` and `accuracy` over what was classified, and `f1`, the mean over classes of theirs.
Of answers `loss` and the rest are over their tokens, and `exact` is the share of texts whose answers were all right.

An encoder-decoder also writes a target for every source, as config.decoding says; they are kept in
DIR/hypotheses, and compared with the references by each --metric: bleu(lowercase, tokenize),
tokenized_bleu(language, lowercase, split_compounds), chrf(words), rouge, exact.
"""

import json
import pathlib

from tfm import run, spec
from tfm.config import require
from tfm.data.progress import track
from tfm.evaluation.text_metrics import METRICS


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='of a run that tfm train made')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add('--average', type=int, metavar='N', help='average the last N checkpoints (default: config.decoding.average)')
  add('--split', default='validation', metavar='NAME', help='train, validation or test (default: validation)')
  add('--metric', action='append', metavar='SPEC', help='of written targets; may be given several times (default: bleu and chrf)')


def main(args):
  metrics = {text: spec.choose(text, METRICS) for text in args.metric or ('bleu', 'chrf')}
  loaded = run.load(args.workdir, args.step, args.average)
  writes = hasattr(loaded.model, 'encode')
  require(writes or args.metric is None, f'--metric={(args.metric or [""])[0]} compares written targets, and a decoder has '
                                         'no references to compare with; leave it out')
  values = run.evaluate(loaded, args.split)
  if writes:
    pairs, found = run.written(loaded, args.split)
    hypotheses = dict(track(found, f'translating {args.split}', len(pairs)))
    rows = [dict(source=source, reference=reference, hypothesis=hypotheses[i][0].text, score=hypotheses[i][0].score)
            for i, (source, reference) in enumerate(pairs)]
    kept = pathlib.Path(args.workdir) / 'hypotheses' / f'{args.split}-{loaded.step}.jsonl'
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')
    for text, metric in metrics.items():
      found = metric([row['hypothesis'] for row in rows], [row['reference'] for row in rows])
      # Under the words that asked for it: bleu and bleu(lowercase=True) are two numbers.
      values |= {name.replace(text.partition('(')[0], text, 1): value for name, value in found.items()}
    values |= dict(hypotheses=str(kept))
  print(json.dumps(dict(step=loaded.step, split=args.split, **values), indent=2))
