"""Recall by width and number of pairs: the grid of Zoology, each run ended where it has solved its task.

Question:  How wide must a model be to recall n pairs, with attention and with a state of fixed size?
Source:    Arora et al. 2023 (Zoology, figure 2 and appendix E: two layers, the best of four rates, runs ended
           at 0.99); Arora et al. 2024 (Based: recall grows with the state).
Command:   tfm ablate experiments/mqar.py --workdir=runs/mqar --jobs=2
Cost:      1:33 h on 2 CPU cores, with --jobs=2.
Expected:  at width 64 all three solve 4 and 16 pairs in three of three seeds, attention after 300 and 450
           steps, linear attention after 1,150 and 800, the gated delta rule after 1,050 and 2,000; at 32
           attention alone does (docs/results/studies/mqar.md).
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


SOLVED = 0.99
LENGTH = 48
MIXERS = {
  'attention': {},
  'linear attention': {'model.mixer': 'linear'},
  'gated delta rule': {'model.mixer': 'gated_delta', 'model.position': 'none'},
}
WIDTHS = 16, 32, 64
PAIRS = 4, 16
TASKS = {
  f'{pairs} pairs': {'data.source': f'mqar(length={LENGTH}, pairs={pairs}, vocabulary=34, joined=True)'}
  for pairs in PAIRS
}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'answers'
  config.data = dict(
    source=TASKS['4 pairs']['data.source'], tokenizer='words', length=LENGTH + 2, packing='answered'
  )
  config.model = dict(layers=2, width=64, heads=2, position='rope', initializer='lecun_normal')
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=50)
  config.training = dict(
    steps=3000, batch_size=32, evaluate_every=150, stop_when=f'at_least("accuracy", {SOLVED})'
  )
  arms = product(MIXERS, {f'width {width}': {'model.width': width} for width in WIDTHS}, TASKS)
  return Study(
    question='How wide must a model be to recall n pairs, with attention and with a state of fixed size?',
    literature=(
      'Arora et al. 2023: attention solves every task at every width; gated convolutions and recurrences '
      'need a width that grows with the number of pairs. Arora et al. 2024: recall grows with the state.'
    ),
    config=config,
    base='attention + width 32 + 4 pairs',
    arms=arms,
    against=compare_within(arms, 'attention'),
    tasks=tuple(TASKS),
    metric='accuracy',
    higher_is_better=True,
    seeds=3,
    learning_rates=(1e-3, 3e-3, 8e-3),
    measures=('initialization',),
  )
