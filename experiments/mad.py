"""The six tasks of MAD, as published: what a mixer can do with tokens, and what it cannot.

Question:  Which of MAD's tasks do attention, a selective state space and a gated delta rule learn?
Source:    Poli et al. 2024 (MAD, §3.1, and its published code: tasks at their first difficulty, two blocks of
           a mixer and SwiGLU, 12,800 examples 200 times, the best of three rates); Yang et al. 2024 (DeltaNet
           on the same tasks).
Command:   tfm ablate experiments/mad.py --workdir=runs/mad
Cost:      not measured: 108 trainings of 20,000 steps, for an accelerator.
Expected:  not measured. Published accuracies, means over difficulties: `PUBLISHED` below.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


MIXERS = {
  'attention': {},
  'mamba': {'model.mixer': 'mamba(state=4)', 'model.position': 'none'},
  'gated delta rule': {'model.mixer': 'gated_delta', 'model.position': 'none'},
}


EXAMPLES = 'examples=12_800, held_out=1280'


def task(source: str, length: int, tokenizer: str = 'words', objective: str = 'answers') -> dict:
  """The settings of a task whose longest text has `length` tokens with the end token."""
  return {'data.source': source, 'data.length': length, 'data.tokenizer': tokenizer, 'objective': objective}


TASKS = {
  'compression': task(f'compression({EXAMPLES})', 35, objective='reconstruction'),
  'fuzzy recall': task(f'fuzzy_recall(length=128, {EXAMPLES})', 130),
  'recall': task(f'in_context_recall(length=128, {EXAMPLES})', 130),
  'memorization': task(f'memorization(length=32, {EXAMPLES})', 34),
  'noisy recall': task(f'in_context_recall(length=128, noise=0.2, {EXAMPLES})', 130),
  'selective copy': task(f'selective_copy(length=256, {EXAMPLES})', 274, tokenizer='bytes'),
}


# Accuracies at these tasks, means over difficulties; those of DeltaNet by Yang et al. 2024.
PUBLISHED = {
  'attention': (0.516, 0.298, 0.941, 0.852, 0.868, 0.996),
  'mamba': (0.527, 0.067, 0.904, 0.895, 0.901, 0.863),
  'DeltaNet': (0.422, 0.357, 1.0, 0.528, 1.0, 1.0),
}
SOURCE = 'Poli et al. 2024, tabulated by Yang et al. 2024 (DeltaNet, figure 3): a mean over difficulties'


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'answers'
  config.data = dict(packing='answered')
  config.model = dict(
    layers=2,
    width=128,
    heads=16,
    position='rope',
    norm='rmsnorm',
    feed_forward='swiglu',
    initializer='lecun_normal',
  )
  config.optimizer = dict(learning_rate=5e-4, schedule='cosine', warmup=1)
  config.training = dict(steps=20_000, batch_size=128, evaluate_every=1000)
  arms = product(MIXERS, TASKS)
  return Study(
    question="Which of MAD's tasks do attention, a selective state space and a gated delta rule learn?",
    literature=(
      f'Accuracy as the mean over difficulties of {", ".join(TASKS)}: '
      + '; '.join(f'{mixer} {", ".join(map(str, of_tasks))}' for mixer, of_tasks in PUBLISHED.items())
      + ' (Poli et al. 2024; DeltaNet: Yang et al. 2024, figure 3, which tabulates the others, too).'
    ),
    published={
      f'{mixer} + {name}': (accuracy, SOURCE)
      for mixer in ('attention', 'mamba')
      for name, accuracy in zip(TASKS, PUBLISHED[mixer], strict=True)
    },
    config=config,
    base='attention + compression',
    arms=arms,
    against=compare_within(arms, 'attention'),
    tasks=tuple(TASKS),
    metric='accuracy',
    higher_is_better=True,
    seeds=3,
    learning_rates=(1e-4, 5e-4, 1e-3),
    measures=('initialization',),
  )
