"""The six tasks of MAD: what a mixer can do with tokens, and what it cannot.

Question:  Which of MAD's tasks do attention, a selective state space and a delta rule learn?
Source:    Poli et al. 2024 (MAD, §3.1: the tasks, at their first difficulty, and two blocks of a mixer and
           SwiGLU); Yang et al. 2024 (DeltaNet on the same tasks).
Command:   tfm ablate experiments/mad.py --workdir=runs/mad
Cost:      not measured.
Expected:  not measured. Published accuracies, in per cent: see `get_study`.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


MIXERS = {
  'attention': {},
  'mamba': {'model.mixer': 'mamba', 'model.position': 'none'},
  'gated delta rule': {'model.mixer': 'gated_delta', 'model.position': 'none'},
}


def task(source: str, length: int, tokenizer: str = 'words', objective: str = 'answers') -> dict:
  """The settings of a task whose longest text has `length` tokens with the end token."""
  return {'data.source': source, 'data.length': length, 'data.tokenizer': tokenizer, 'objective': objective}


TASKS = {
  'compression': task('compression', 35, objective='reconstruction'),
  'fuzzy recall': task('fuzzy_recall(length=128)', 130),
  'recall': task('in_context_recall(length=128)', 130),
  'memorization': task('memorization(length=32)', 34),
  'noisy recall': task('in_context_recall(length=128, noise=0.2)', 130),
  'selective copy': task('selective_copy(length=256)', 274, tokenizer='bytes'),
}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'answers'
  config.data = dict(source='compression', tokenizer='words', length=35, packing='answered')
  config.model = dict(
    layers=2,
    width=64,
    heads=4,
    position='rope',
    norm='rmsnorm',
    feed_forward='swiglu',
    initializer='lecun_normal',
  )
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=800, batch_size=32, evaluate_every=100, stop_when='at_least("accuracy", 0.99)')
  arms = product(MIXERS, TASKS)
  return Study(
    question="Which of MAD's tasks do attention, a selective state space and a delta rule learn?",
    literature=(
      'Accuracy in per cent, as the mean over difficulties, of compression, fuzzy recall, recall, '
      'memorization, noisy recall and selective copying: Transformer 51.6, 29.8, 94.1, 85.2, 86.8, 99.6; '
      'Mamba 52.7, 6.7, 90.4, 89.5, 90.1, 86.3 (Poli et al. 2024); DeltaNet 42.2, 35.7, 100, 52.8, 100, 100 '
      '(Yang et al. 2024).'
    ),
    config=config,
    base='attention + compression',
    arms=arms,
    against=compare_within(arms, 'attention'),
    tasks=tuple(TASKS),
    metric='accuracy',
    higher_is_better=True,
    seeds=3,
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3),
    measures=('initialization',),
  )
