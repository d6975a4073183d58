"""The number of heads at constant width and parameters.

Question:  How many heads does a layer need, when the width and the parameters stay the same?
Source:    Vaswani et al. 2017, Table 3 (A): of 1 to 32 heads, 8 and 16 are best; Michel et al. 2019 (most
           heads can be removed after training); Bhojanapalli et al. 2020 (heads narrower than the sequence
           length cannot express all patterns).
Command:   tfm ablate experiments/heads.py --workdir=runs/heads
Cost:      0:36 h on 2 CPU cores (x86_64), beside other work.
Expected:  beside 4 heads 1 loses 0.22 nats, 32 lose 0.13 and 2 lose 0.07; whether 4, 8 or 16 are best is
           undecided with four seeds.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


HEADS = 4, 1, 2, 8, 16, 32


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  config.model = dict(layers=2, width=128, heads=4, position='rope', initializer='lecun_normal')
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=400, batch_size=16, evaluate_every=100, evaluation_batches=48)
  return Study(
    question='How many heads does a layer need, when the width and the parameters stay the same?',
    literature=(
      'Vaswani et al. 2017: 1 head loses 0.9 BLEU beside 8, and 32 lose 0.4; Michel et al. 2019 remove '
      'most heads of trained models at little cost; Bhojanapalli et al. 2020 blame heads that are '
      'narrower than the sequence is long.'
    ),
    config=config,
    base='4 heads',
    arms={f'{n} head{"s" * (n > 1)}': {'model.heads': n} for n in HEADS},
    seeds=4,
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3),
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )
