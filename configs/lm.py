"""The plain decoder-only language model.

Question:  does the whole system work, from text to samples?
Source:    ours: a GPT-2-like pre-norm decoder (Radford et al. 2019, §2.3) with rotary positions (Su et al.
           2021, §3), trained on the bytes of the running Python's own standard library.
Command:   tfm train --config=configs/lm.py --workdir=runs/lm
           tfm train --config=configs/lm.py:demo --workdir=runs/demo
Cost:      not measured.
Expected:  demo, seed 0: 2.04 bits per byte on the whole validation split
           (docs/results/benchmarks.md). The larger default: not measured.
"""

from ml_collections import ConfigDict


def get_config(arg: str = '') -> ConfigDict:
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
  elif arg:
    raise ValueError(f"configs/lm.py takes 'demo' or nothing, not {arg!r}")
  return config
