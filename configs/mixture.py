"""Translation into English from a mixture of German and French: one model, two sources by weights.

Question:  how well is each language translated if 3 of 4 rows are German and one is French?
Source:    ours; the model of configs/numbers.py, one layer smaller on each side.
Command:   tfm train --config=configs/mixture.py --workdir=runs/mixture
           tfm evaluate --workdir=runs/mixture --split=validation/de --metric=exact
           tfm evaluate --workdir=runs/mixture --split=validation/fr --metric=exact
Cost:      5 minutes on 2 busy cores of a CPU
Expected:  loss per token after 400 steps: German 0.150, French 0.224; exact translations of the
           validation split, seed 0: German 67 %, French 42 %
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'seq2seq(label_smoothing=0.1)'
  config.data = dict(
    source='mix(de=0.75, fr=0.25)',
    sources=dict(de="numbers('de', 'en')", fr="numbers('fr', 'en')"),
    tokenizer='bytes',
    length=96,
    packing='padded',
  )
  config.model = dict(
    architecture='encoder_decoder',
    layers=2,
    width=128,
    heads=4,
    feed_forward='relu',
    position='rope',
    bias=True,
    initializer='xavier_uniform',
    cross=dict(position='none'),
  )
  config.optimizer = dict(learning_rate=2e-3, schedule='cosine', warmup=100)
  config.training = dict(steps=400, batch_size=32, evaluate_every=200)
  config.decoding = dict(beams=1)
  return config
