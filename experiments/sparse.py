"""Sparse and low-rank attention in encoders.

Question:  What do sparse and low-rank attention lose where the answer depends on one distant token?
Source:    Beltagy et al. 2020 (window, longformer); Zaheer et al. 2020 (bigbird); Kitaev et al. 2020
           (reformer); Wang et al. 2020 (linformer); Tay et al. 2020 (retrieval in the Long Range Arena).
Command:   tfm ablate experiments/sparse.py --workdir=runs/sparse
Cost:      0:50 h on 2 CPU cores with --jobs=2, beside other work.
Expected:  full attention and Reformer solve it in all five seeds (1.00 and 0.96), the others in none:
           windows, Longformer and BigBird find the twins in sight, 0.34 to 0.41 with guesses, in most
           seeds (docs/results/studies/sparse.md).
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


# A query sees on average 12 to 13 of the 40 words by the masks, in Reformer at most 10, and in Linformer 12
# mixtures of all.
ARMS = {
  'full': {},
  'window': {'model.mask': 'window(6)'},
  'longformer': {'model.mixer': 'longformer(2)', 'model.mask': 'longformer(4, 2)'},
  'bigbird': {'model.mask': 'bigbird(2, 2, 1, 2, blocks=20)'},
  'reformer': {'model.mixer': 'reformer(buckets=8, chunk=3, hashes=2)'},
  'linformer': {'model.mixer': 'linformer(12)'},
}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'classification(10, words=True)'
  config.data = dict(source='twins(pairs=20, keys=20)', tokenizer='words', length=44, packing='each')
  config.model = dict(
    architecture='encoder', layers=2, width=64, heads=4, position='learned', pooling='first'
  )
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=3000, batch_size=32, evaluate_every=250)
  return Study(
    question='What do sparse and low-rank attentions lose as encoders on retrieval?',
    literature=(
      'Tay et al. 2020 find on retrieval of documents, in per cent: full 57.5, BigBird 59.3, Longformer '
      '56.9, Reformer and local 53.4, Linformer 52.3.'
    ),
    config=config,
    base='full',
    arms=ARMS,
    metric='accuracy',
    higher_is_better=True,
    solved_at=0.9,
    seeds=5,
    learning_rates=(1e-3, 2e-3, 4e-3),
    measures=('parts("accuracy")', 'initialization'),
  )
