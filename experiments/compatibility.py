"""Compatibility functions of attention, and the scale of the dot product.

Question:  Which compatibility function is best, and why is the dot product divided by √d?
Source:    Bahdanau et al. 2015 (additive); Luong et al. 2015 (dot, general: here bilinear); Vaswani et al.
           2017, §3.2.1 and its footnote 4 (scaled dot); Henry et al. 2020 (cosine).
Command:   tfm ablate experiments/compatibility.py --workdir=runs/compatibility
Cost:      0:31 h on 2 CPU cores (x86_64), beside other work.
Expected:  without 1/√d a dot product loses 0.10, 0.25 and 0.34 nats at head widths 8, 32 and 128; bilinear
           scores lose 0.26 and 0.39 at 32 and 128, additive ones 0.09; cosine is undecided.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


SCORES = {
  'dot': 'dot',
  'unscaled': 'dot(scale=1.0)',
  'bilinear': 'bilinear',
  'additive': 'additive(width=16)',
  'cosine': 'cosine',
}
WIDTHS = 8, 32, 128


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  # Two heads of any width; learned positions do not change the scores.
  config.model = dict(layers=2, width=64, heads=2, position='learned', initializer='lecun_normal')
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=400, batch_size=16, evaluate_every=100, evaluation_batches=48)
  arms = product(
    {name: {'model.score': score} for name, score in SCORES.items()},
    {f'{width}': {'model.head_width': width} for width in WIDTHS},
  )
  return Study(
    question='Which compatibility function, and why is the dot product divided by √d?',
    literature=(
      'Vaswani et al. 2017: additive attention outperforms dot products without scaling for larger d, '
      'they suspect because large products push the softmax to where its gradients are small, and with '
      '1/√d both do alike.'
    ),
    config=config,
    arms=arms,
    base=f'dot + {WIDTHS[0]}',
    against=compare_within(arms, 'dot'),
    seeds=4,
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3),
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )
