"""The plain decoder-only language model.

Question:  does the whole system work, from text to samples?
Source:    ours: a GPT-2-like pre-norm decoder (Radford et al. 2019, §2.3) with rotary positions (Su et al.
           2021, §3), trained on the bytes of the running Python's own standard library. rope_nope: every
           fourth layer has no positions (Yang et al. 2025, "Rope to Nope and back again").
Command:   tfm train --config=configs/lm.py --workdir=runs/lm
           tfm train --config=configs/lm.py:demo --workdir=runs/demo
           tfm train --config=configs/lm.py:rope_nope --workdir=runs/rope_nope
Cost:      not measured.
Expected:  demo, seed 0: 2.04 bits per byte on the whole validation split
           (docs/results/speed.md). The larger default: not measured.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, ['demo', 'rope_nope'])
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=256)
  config.model = dict(
    layers=6, width=384, heads=6, position='rope', mask='causal', initializer='lecun_normal'
  )
  config.optimizer = dict(name='adamw', learning_rate=1e-3, schedule='cosine', warmup=100)
  config.training = dict(steps=2000, batch_size=32, evaluate_every=250)
  if arg == 'demo':
    config.data.length = 128
    config.model.update(layers=4, width=128, heads=4)
    config.optimizer.update(learning_rate=3e-3, warmup=50)
    config.training.update(steps=1000, batch_size=8, evaluate_every=250, evaluation_batches=50)
  elif arg == 'rope_nope':
    config.model.layers = 8
    config.model.pattern = ('rope', 'rope', 'rope', 'nope')
    config.model.blocks = dict(rope={}, nope=dict(position='none'))
  return config
