"""Synthetic tasks: copying, lookup, counting and classification.

Question:  which mixers and positions solve each task, and which also solve it beyond the training lengths?
Source:    each task's paper, cited in tfm/data/sources. Lengths and vocabularies of mqar, induction,
           selective_copy and listops are the papers'; the small models are ours.
Command:   tfm train --config=configs/synthetic.py --workdir=runs/copy          (copy)
           tfm train --config=configs/synthetic.py:mqar --workdir=runs/mqar
           tfm train --config=configs/synthetic.py:listops --workdir=runs/listops
             (likewise reverse, sort, parity, addition, induction, selective_copy, needle)
           tfm evaluate --workdir=runs/copy --split=validation                  (lengths of training)
           tfm evaluate --workdir=runs/copy --split=test                        (longer, if the task has them)
Cost:      not measured.
Expected:  not measured.
"""

from typing import NamedTuple

from ml_collections import ConfigDict


class Task(NamedTuple):
  """A source, its tokenizer, and the number of tokens of its longest text with the end token."""

  source: str
  tokenizer: str
  length: int


TASKS = {
  'copy': Task('copy(length=20, longer=40)', 'bytes', 82),
  'reverse': Task('reverse(length=20, longer=40)', 'bytes', 82),
  'sort': Task('sort(length=20, longer=40)', 'bytes', 82),
  'parity': Task('parity(length=20, longer=40)', 'bytes', 43),
  'addition': Task('addition(length=5, longer=8)', 'bytes', 28),
  'mqar': Task('mqar(length=64, pairs=4)', 'words', 66),
  'induction': Task('induction(length=256, longer=512)', 'bytes', 514),
  'selective_copy': Task('selective_copy(length=4096)', 'bytes', 4114),
  'needle': Task('needle(length=1024, longer=2048)', 'bytes', 2049),
  'listops': Task('listops', 'words', 2000),
}


def get_config(arg: str = '') -> ConfigDict:
  if (arg or 'copy') not in TASKS:
    raise ValueError(f'configs/synthetic.py takes a task, one of {", ".join(TASKS)}, not {arg!r}')
  config = ConfigDict()
  config.objective = 'answers'
  config.data = TASKS[arg or 'copy']._asdict() | dict(packing='answered')
  config.model = dict(layers=2, width=128, heads=4, position='rope')
  config.optimizer = dict(learning_rate=1e-3, schedule='cosine', warmup=200)
  config.training = dict(steps=5000, batch_size=64, evaluate_every=500)
  if arg == 'listops':  # Long Range Arena's sizes: 6 layers of width 512, 8 heads
    config.objective = 'classification(10)'
    config.data.packing = 'each'
    config.model.update(architecture='encoder', layers=6, width=512, heads=8, pooling='first')
    config.training.update(batch_size=32)
  return config
