"""muP: the best learning rate of a narrow model is that of a wide one.

Question:  Does the best learning rate move with the width, by the standard parametrization and by muP?
Source:    Yang et al. 2022 (Tensor Programs V, figures 1 and 3, and Table 8).
Command:   tfm ablate experiments/mup.py --workdir=runs/mup
Cost:      0:23 h on 2 CPU cores (x86_64) with --jobs=2, beside tests.
Expected:  by muP the best rate is 0.010 to 0.014 at all widths, by the standard parametrization it falls from
           0.012 to 0.0011; at its own rate muP is behind by 0.019 nats at width 128, p = 0.008.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


WIDTHS = 32, 64, 128, 256


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  config.model = dict(layers=2, heads=4, position='rope', initializer='lecun_normal', tie_embeddings=False)
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=300, batch_size=8, evaluate_every=100, evaluation_batches=48)
  arms = product(
    {'standard': {}, 'muP': {'model.parametrization': f'mup(base_width={WIDTHS[0]})'}},
    {str(width): {'model.width': width} for width in WIDTHS},
  )
  return Study(
    question='Does the best learning rate move with the width, by the standard parametrization and by muP?',
    literature=(
      'Yang et al. 2022: by the standard parametrization the best learning rate falls as the width grows, '
      'about as one over it; by muP it stays, so that it can be found in a narrow model, and a wider model '
      'is always better at one rate.'
    ),
    config=config,
    arms=arms,
    base=f'standard + {WIDTHS[0]}',
    against=compare_within(arms, 'standard'),
    seeds=3,
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    rates_beyond=2,
    measures=('initialization',),
  )
