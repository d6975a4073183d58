"""Positions on small tasks, at lengths of training and at longer ones.

Question:  Does a decoder without positions solve tasks at lengths it never saw, where rope does not?
Source:    Kazemnejad et al. 2023 (The Impact of Positional Encoding on Length Generalization in Transformers,
           §4, figures 2 and 3): copying, addition, sorting and others, trained to length 20, tested to 40.
Command:   tfm ablate experiments/reasoning.py --workdir=runs/reasoning
Cost:      0:29 h on 2 CPU cores (x86_64, AVX-512), with --jobs=2.
Expected:  at lengths of training nearly all letters are right; of those of longer texts 0.91 are sorted
           without positions, 0.87 with alibi, 0.85 with T5's bias, 0.78 with rope; reversed 0.53, 0.35, 0.49,
           0.28.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


# Tables that begin small beside embeddings of unit size would be absent for the first hundreds of steps.
POSITIONS = {'rope': 'rope', 'none': 'none', 't5': 't5(stddev=0.5)', 'alibi': 'alibi'}
TASKS = 'sort', 'reverse'


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'answers'
  config.data = dict(tokenizer='bytes', length=36, packing='answered')
  config.model = dict(layers=3, width=64, heads=4, initializer='lecun_normal')
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=1000, batch_size=32, evaluate_every=200)
  arms = product(
    {name: {'model.position': position} for name, position in POSITIONS.items()},
    {task: {'data.source': f'{task}(length=8, longer=16)'} for task in TASKS},
  )
  first, *_ = TASKS
  return Study(
    question='Does a decoder without positions solve tasks at lengths it never saw, where rope does not?',
    literature=(
      'Kazemnejad et al. 2023: of decoders trained to length 20 and tested to 40, those without positions '
      "and those with T5's are right most often, then alibi, then rope and absolute positions; at lengths of "
      'training all are alike.'
    ),
    config=config,
    arms=arms,
    base=f'rope + {first}',
    against=compare_within(arms, 'rope'),
    tasks=TASKS,
    metric='accuracy',
    higher_is_better=True,
    seeds=4,
    learning_rates=(1e-3, 2e-3, 4e-3),
    rates_beyond=2,
    measures=('split("test")', 'initialization'),
  )
