"""The number of heads at constant width and parameters.

Question:  How many heads does a layer need, when the width and the parameters stay the same?
Source:    Vaswani et al. 2017, Table 3 (A): of 1 to 32 heads, 8 and 16 are best; Michel et al. 2019 (most
           heads can be removed after training); Bhojanapalli et al. 2020 (heads narrower than the sequence
           length cannot express all patterns).
Command:   tfm ablate experiments/heads.py --workdir=runs/heads
Cost:      about 0:55 h on 2 CPU cores (x86_64) with --jobs=2, beside other work.
Expected:  8 heads are best: 4 lose 0.019 nats, 2 lose 0.060, 32 lose 0.078 and 1 loses 0.141; whether 16
           lose anything is undecided with five seeds.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


HEADS = 8, 1, 2, 4, 16, 32


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  # Embeddings of about unit size: with smaller ones the tokens begin alike.
  config.model = dict(
    layers=2,
    width=128,
    heads=8,
    position='rope',
    initializer='lecun_normal',
    scale_embeddings=True,
    embedding_initializer='normal(0.1)',
  )
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=1000, batch_size=16, evaluate_every=200, evaluation_batches=48)
  return Study(
    question='How many heads does a layer need, when the width and the parameters stay the same?',
    literature=(
      'Vaswani et al. 2017: 1 head loses 0.9 BLEU beside 8, and 32 lose 0.4; Michel et al. 2019 remove '
      'most heads of trained models at little cost; Bhojanapalli et al. 2020 blame heads that are '
      'narrower than the sequence is long.'
    ),
    config=config,
    base='8 heads',
    arms={f'{n} head{"s" * (n > 1)}': {'model.heads': n} for n in HEADS},
    seeds=5,
    learning_rates=(2e-3, 4e-3, 8e-3),
    rates_beyond=1,
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )
