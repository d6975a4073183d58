"""Compatibility functions of attention, and the scale of the dot product.

Question:  Which compatibility function is best, and why is the dot product divided by √d?
Source:    Bahdanau et al. 2015 (additive); Luong et al. 2015 (dot, general: here bilinear); Vaswani et al.
           2017, §3.2.1 and its footnote 4 (scaled dot); Henry et al. 2020 (cosine).
Command:   tfm ablate experiments/compatibility.py --workdir=runs/compatibility
           tfm ablate experiments/compatibility.py:control --workdir=runs/control   (scale or first logits)
Cost:      0:22 h on 2 CPU cores (x86_64), with --jobs=2; control 0:46 h, beside two others.
Expected:  without 1/√d a dot product loses 0.106, 0.227 and 0.386 nats at head widths 8, 32 and 128; additive
           scores lose 0.092 at 128; bilinear ones, scaled alike, and cosine are undecided. control: first
           logits of √d cost 0.195 and 0.326 at 32 and 128 with 1/√d, too; first logits of 1 without it cost
           0.072 and 0.209.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within


WIDTHS = 8, 32, 128
CONTROL_WIDTHS = 32, 128


def list_scores(width: int) -> dict:
  """Scores of heads of this width, bilinear ones with the factor of the dot product."""
  return {
    'dot': 'dot',
    'unscaled': 'dot(scale=1.0)',
    'bilinear': f'bilinear(scale={width**-0.5:.4f})',
    'additive': 'additive(width=16)',
    'cosine': 'cosine',
  }


def list_control_arms() -> dict:
  """Scores with and without 1/√d whose logits begin at size 1 or √d, by the size of the first queries: if
  saturation is what costs, the first logits decide, and not the scale.
  """
  arms = {}
  for width in CONTROL_WIDTHS:
    root = width**0.5
    for name, scale, factor in (
      ('scaled from 1', '', 1.0),
      ('unscaled from √d', '(scale=1.0)', 1.0),
      ('unscaled from 1', '(scale=1.0)', 1 / root),
      ('scaled from √d', '', root),
    ):
      arms[f'{name} + {width}'] = {
        'model.score': f'dot{scale}',
        'model.mixer': f'softmax(query_init_scale={factor:.4f})',
        'model.head_width': width,
      }
  return arms


def get_study(arg: str = '') -> Study:
  require_argument(arg, ['control'])
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  # Two heads of any width; learned positions do not change the scores.
  config.model = dict(layers=2, width=64, heads=2, position='learned', initializer='lecun_normal')
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=400, batch_size=16, evaluate_every=100, evaluation_batches=48)
  literature = (
    'Vaswani et al. 2017: additive attention outperforms dot products without scaling for larger d, '
    'they suspect because large products push the softmax to where its gradients are small, and with '
    '1/√d both do alike.'
  )
  if arg == 'control':
    arms = list_control_arms()
    return Study(
      question='Does 1/√d matter because the first logits are large, or because it is a scale?',
      literature=literature + ' T5 has no 1/√d and begins with queries that are smaller by it (Raffel et al. '
      '2020). So: large first logits cost with 1/√d, too, and small ones need none.',
      config=config,
      arms=arms,
      base=next(iter(arms)),
      against=compare_within(arms, 'scaled from 1'),
      seeds=4,
      learning_rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
      equal_within=0.02,
      measures=('parts', 'initialization'),
    )
  arms = {
    f'{name} + {width}': {'model.score': score, 'model.head_width': width}
    for width in WIDTHS
    for name, score in list_scores(width).items()
  }
  return Study(
    question='Which compatibility function, and why is the dot product divided by √d?',
    literature=literature,
    config=config,
    arms=arms,
    base=f'dot + {WIDTHS[0]}',
    against=compare_within(arms, 'dot'),
    seeds=5,
    learning_rates=(2e-3, 4e-3, 8e-3),
    rates_beyond=1,
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )
