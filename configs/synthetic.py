"""Synthetic tasks: copying, lookup, counting and classification.

Question:  which mixers and positions solve each task, and which also solve it beyond the training lengths?
Source:    each task's paper, cited in tfm/data/sources. Lengths and vocabularies of mqar, induction,
           selective_copy, listops and MAD's are the papers'; the small models are ours.
Command:   tfm train --config=configs/synthetic.py --workdir=runs/copy          (copy)
           tfm train --config=configs/synthetic.py:mqar --workdir=runs/mqar
           tfm train --config=configs/synthetic.py:listops --workdir=runs/listops
             (likewise reverse, sort, parity, addition, induction, selective_copy, needle, regbench,
             pathfinder; and of MAD in_context_recall, noisy_recall, fuzzy_recall, memorization,
             compression)
           tfm evaluate --workdir=runs/copy --split=validation                  (lengths of training)
           tfm evaluate --workdir=runs/copy --split=test                        (longer, if the task has them)
Cost:      not measured; pathfinder first draws its 20,000 images, at 0.036 s each (mean of 60, one core of an
           Intel Xeon), and again as it stores them: 24 minutes.
Expected:  not measured. Published, of a Transformer: 36.4 % right on ListOps, 71.4 % on Pathfinder (Tay et
           al. 2020, Table 1); that Transformers are ahead of recurrent and convolutional models on RegBench
           (Akyürek et al. 2024, abstract). MAD's tasks by their published protocol, and what is published of
           them: experiments/mad.py.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Task(NamedTuple):
  """A source, its tokenizer, if it is of texts, and the tokens of its longest text with the end token."""

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
  'in_context_recall': Task('in_context_recall(length=128)', 'words', 130),
  'noisy_recall': Task('in_context_recall(length=128, noise=0.2)', 'words', 130),
  'fuzzy_recall': Task('fuzzy_recall(length=128)', 'words', 130),
  'memorization': Task('memorization(length=32)', 'words', 34),
  'compression': Task('compression', 'words', 35),
  'regbench': Task('regbench(strings=20, length=50)', 'words', 1022),
  'induction': Task('induction(length=256, longer=512)', 'bytes', 514),
  'selective_copy': Task('selective_copy(length=4096)', 'bytes', 4114),
  'needle': Task('needle(length=1024, longer=2048)', 'bytes', 2049),
  'listops': Task('listops', 'words', 2000),
  # Paths as long as those of the published 71.4 %.
  'pathfinder': Task('pathfinder(size=32, dashes=14)', '', 32 * 32 + 1),
}


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, TASKS)
  config = ConfigDict()
  config.objective = 'answers'
  config.data = dict(packing='answered') | {
    field: value for field, value in TASKS[arg or 'copy']._asdict().items() if value
  }
  config.model = dict(layers=2, width=128, heads=4, position='rope')
  config.optimizer = dict(learning_rate=1e-3, schedule='cosine', warmup=200)
  config.training = dict(steps=5000, batch_size=64, evaluate_every=500)
  if arg == 'compression':
    config.objective = 'reconstruction'
  elif arg == 'listops':  # Long Range Arena's sizes: 6 layers of width 512, 8 heads
    config.objective = 'classification(10)'
    config.data.packing = 'each'
    config.model.update(architecture='encoder', layers=6, width=512, heads=8, pooling='first')
    config.training.update(batch_size=32)
  elif arg == 'pathfinder':  # every pixel a token
    config.objective = 'classification(2)'
    config.data.packing = 'each'
    config.model.update(architecture='encoder', patch=1, layers=4, position='learned', pooling='first')
  return config
