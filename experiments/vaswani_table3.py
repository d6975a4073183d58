"""Table 3 of "Attention Is All You Need": heads, key width, depth, width, dropout, smoothing, positions.

Question:  Which choices of the first Transformer matter?
Source:    Vaswani et al. 2017, §6.2 and Table 3.
Command:   tfm ablate experiments/vaswani_table3.py --workdir=runs/table3   (scaled down, number words)
           tfm ablate experiments/vaswani_table3.py:full --workdir=runs/table3-full   (as in the paper)
Cost:      1:15 h on 2 CPU cores (x86_64), with --jobs=2, in three parts; full: not measured.
Expected:  in 500 steps half the width loses 0.142 nats, keys of 4 channels 0.071 and one layer 0.037, as in
           the paper; sixteen heads, four times the base's, 0.031, as four times as many do there; without
           smoothing the loss is 0.050 less; learned positions lose 0.084, against the paper; four layers,
           twice the width and one, two or eight heads are undecided. Full: the paper's table, base 25.8 BLEU
           on newstest2013.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.config.load import load_config
from tfm.config.schema import leaves
from tfm.studies.study import Study


PAPER = 'vaswani2017'
ROWS = (
  'a1',
  'a2',
  'a3',
  'a4',
  'b1',
  'b2',
  'c1',
  'c2',
  'c3',
  'c4',
  'c5',
  'c6',
  'c7',
  'd1',
  'd2',
  'd3',
  'd4',
  'e1',
)


def heads(count: int, width: int) -> dict:
  return {'model.heads': count, 'model.head_width': width}


# Widths are an eighth of the paper's, with 4 heads of 16 channels and 2 layers.
NARROW_KEYS = {'model.mixer': 'softmax(value_width=16)'}
SMALL = {
  'base': {},
  'A 1 head': heads(1, 64),
  'A 2 heads': heads(2, 32),
  'A 8 heads': heads(8, 8),
  'A 16 heads': heads(16, 4),
  'B keys of 4': heads(4, 4) | NARROW_KEYS,
  'B keys of 8': heads(4, 8) | NARROW_KEYS,
  'C 1 layer': {'model.layers': 1},
  'C 4 layers': {'model.layers': 4},
  'C width 32': {'model.width': 32, 'model.embedding_initializer': 'normal(0.1768)'},
  'C width 128': {'model.width': 128, 'model.embedding_initializer': 'normal(0.08839)'},
  'C feed-forward 128': {'model.feed_forward_width': 128},
  'C feed-forward 512': {'model.feed_forward_width': 512},
  'D no dropout': {'model.dropout.embedding': 0.0, 'model.dropout.residual': 0.0},
  'D dropout 0.2': {'model.dropout.embedding': 0.2, 'model.dropout.residual': 0.2},
  'D no smoothing': {'objective': 'seq2seq(label_smoothing=0.0)'},
  'D smoothing 0.2': {'objective': 'seq2seq(label_smoothing=0.2)'},
  # Begun as loud as sinusoids, whose channels have 1/√2 in the root mean square; and as in GPT-2.
  'E learned': {'model.position': 'learned(stddev=0.7071)'},
  'E learned from 0.02': {'model.position': 'learned'},
}


def get_study(arg: str = '') -> Study:
  require_argument(arg, ['full'])
  config = load_config(PAPER)
  if arg == 'full':
    before = dict(leaves(config))
    rows = {row: dict(leaves(load_config(f'{PAPER}:{row}'))) for row in ROWS}
    arms = {'base': {}} | {
      row: {path: value for path, value in of_row.items() if value != before[path]}
      for row, of_row in rows.items()
    }
  else:
    arms = SMALL
    config.data = ConfigDict(
      config.data.to_dict()
      | dict(source="numbers('en', 'de')", tokenizer='bytes', length=64, packing='padded')
    )
    config.model.update(
      layers=2, width=64, heads=4, feed_forward_width=256, embedding_initializer='normal(0.125)'
    )
    # The paper gives no initial values. By Xavier's alone the tokens of most arms are alike before the first
    # step (cosine 0.92; 0.97 with four layers).
    config.model.depth_scaled = True
    config.optimizer.warmup = 200
    config.training.update(steps=500, batch_size=16, evaluate_every=250, keep_checkpoints=2)
    config.decoding.average_checkpoints = 1
  return Study(
    question='What matters in the first Transformer: heads, key width, depth, width, dropout, smoothing, '
    'positions?',
    literature=(
      'Vaswani et al. 2017, Table 3, in BLEU on newstest2013: base 25.8; 1 head 24.9, 32 heads 25.4; keys'
      ' of 16 channels 25.1; 2 layers 23.7; width 256 24.5, 1,024 26.0; feed-forward 4,096 26.2; no '
      'dropout 24.6; learned positions 25.7.'
    ),
    config=config,
    base='base',
    arms=arms,
    # The full size trains by the schedule of the paper.
    seeds=3 if arg == 'full' else 4,
    learning_rates=() if arg == 'full' else (0.125, 0.25, 0.5, 1.0, 2.0),
    equal_within=None if arg == 'full' else 0.02,
    measures=('generation("bleu", split="validation")', 'initialization')
    if arg == 'full'
    else ('generation("exact", split="validation")', 'parts', 'initialization'),
  )
