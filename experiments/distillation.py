"""A student of half the depth: alone or taught, from random values or from its teacher's layers.

Question:  Does a decoder of half the depth learn more from its teacher's predictions than from the text
           alone, and does it matter whether it starts from every other layer of its teacher?
Source:    Hinton et al. 2015, §2 (softened predictions); Sanh et al. 2019, DistilBERT, §3 (half the layers,
           taken from the teacher).
Needs:     a teacher of four layers: `tfm train --config=experiments/distillation.py --workdir=runs/teacher`.
Command:   tfm ablate experiments/distillation.py --workdir=runs/distillation
           tfm ablate experiments/distillation.py:TEACHER --workdir=runs/distillation     (another path)
Cost:      0:49 h, and 16 minutes for the teacher, on 2 CPU cores (x86_64) with other work beside it.
Expected:  taught is better than alone by 0.036 nats a byte, from its teacher's layers by 0.433, both by 0.470
           (docs/results/studies/distillation.md).
"""

import pathlib

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


def get_config(arg: str = '') -> ConfigDict:
  """The teacher."""
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(layers=4, width=128, heads=4, position='rope')
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=100)
  config.training = dict(steps=2000, batch_size=16, evaluate_every=200, evaluation_batches=48)
  return config


def get_study(arg: str = '') -> Study:
  teacher = arg or 'runs/teacher'
  if not pathlib.Path(teacher, 'config.json').is_file():
    raise ValueError(
      f'experiments/distillation.py takes the run of a teacher; {teacher}/config.json does not exist; see '
      'the header of the file'
    )
  config = get_config()
  config.model.layers = 2
  config.optimizer.warmup = 50
  config.training.update(steps=500, batch_size=8, evaluate_every=100)
  taught = {'objective': f'distillation({teacher!r}, temperature=2.0, alpha=0.5)'}
  from_layers = {'init_from': teacher, 'init_layers': (0, 2)}
  return Study(
    question='Does a decoder of half the depth learn more from its teacher than from the text alone?',
    literature=(
      'Hinton et al. 2015, table 1: a softened teacher lowers the word error of a small acoustic model as '
      'much as an ensemble of ten. Sanh et al. 2019, table 4: without the distillation loss DistilBERT '
      'loses 2.96 points of GLUE, with a random start 3.69.'
    ),
    config=config,
    base='alone',
    arms={
      'alone': {},
      'taught': taught,
      'from its layers': from_layers,
      'taught from its layers': taught | from_layers,
    },
    seeds=4,
    learning_rates=(2e-3, 4e-3, 8e-3),
    rates_beyond=2,
    equal_within=0.01,
    measures=('split("test")', 'parts', 'initialization'),
  )
