"""Induction heads: two layers of attention form them, one cannot.

Question:  Can one layer of attention recall what followed a token before, or are two needed?
Source:    Elhage et al. 2021 and Olsson et al. 2022 (induction heads are formed by two
           layers, and make context useful); Sanford et al. 2024 (a single layer would need a size that is
           exponentially larger); the task: Arora et al. 2023, Zoology, §4.
Command:   tfm ablate experiments/induction.py --workdir=runs/induction
Cost:      0:20 h on 2 CPU cores, with --jobs=2 and the four rates; with the further ones 1:05 h beside tests.
Expected:  two layers solve six of seven seeds, one layer none, wide or not, and with smeared keys all seven;
           prefix matching of the texts is 0.77, 0.26 and 0.94 (docs/results/studies/induction.md).
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'answers'
  config.data = dict(
    source='mqar(length=24, pairs=4, vocabulary=34)', tokenizer='words', length=26, packing='answered'
  )
  # Attention alone: without feed-forward layers.
  config.model = dict(layers=2, width=64, heads=4, position='rope', feed_forward='none')
  config.optimizer = dict(learning_rate=2e-3, schedule='cosine', warmup=200)
  config.training = dict(steps=1200, batch_size=64, evaluate_every=150, keep_checkpoints=8)
  return Study(
    question='Can one layer of attention recall what followed a token before, or are two needed?',
    literature=(
      'Two layers: the first attends from each token to the one before it, and the second, by that, to what '
      'followed the same token before (Elhage et al. 2021; Olsson et al. 2022, who see no induction heads in '
      'models of one layer, unless their keys are smeared, each with that of the token before). One layer '
      'would have to be exponentially larger (Sanford et al. 2024). Guessing among the four values of a text '
      'is right in 25 %.'
    ),
    config=config,
    base='2 layers',
    arms={
      '2 layers': {},
      '1 layer': {'model.layers': 1},
      '1 wide layer': {'model.layers': 1, 'model.width': 88},
      # Queries, keys and values see the three tokens before (Canon layer B).
      '1 smeared layer': {'model.layers': 1, 'model.canon': 'B'},
    },
    metric='accuracy',
    higher_is_better=True,
    solved_at=0.9,
    seeds=7,
    learning_rates=(5e-4, 1e-3, 2e-3, 4e-3),
    rates_beyond=2,
    measures=('induction(length=8)', 'over_training("induction(length=8)")', 'initialization'),
  )
