"""nanoGPT's first model: a small decoder of the characters of one text file.

Question:  what does a Transformer learn from one megabyte of text in minutes?
Source:    Karpathy 2022, nanoGPT (https://github.com/karpathy/nanoGPT): config/train_shakespeare_char.py, and
           the command of its README for a computer without a GPU. There, rows begin at random characters;
           here an epoch has each character once, and the vocabulary has an end of text besides the alphabet.
           The text is a file of yours, input.txt in the current folder (there 1.1 MB of Shakespeare's plays);
           its last tenth is the validation split.
Command:   tfm train --config=configs/shakespeare_char.py --workdir=runs/shakespeare               (GPU)
           tfm train --config=configs/shakespeare_char.py:cpu --workdir=runs/shakespeare-cpu
           tfm train --config=configs/shakespeare_char.py:cpu --workdir=runs/own \\
             --config.data.source='text("PATH", tail=0.1)'
Cost:      cpu: four minutes of CPU time, eleven minutes on two cores that were shared with other work. The
           larger default: not measured.
Expected:  cpu, seed 0: 1.602 nats per character of the whole last tenth, for the first 1,115,394 characters
           of the ASCII files at the top of CPython 3.11.7's standard library, in the order of their names;
           nanoGPT itself (3adf61e, PyTorch 2.13): 1.613 on 111,360 characters drawn from the same last tenth.
           Shakespeare, which is not part of this repository, and the larger default: not measured; nanoGPT's
           README gives 1.88 (cpu) and 1.4697.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, ['cpu'])
  config = ConfigDict()
  config.data = dict(source='text("input.txt", tail=0.1)', tokenizer='char(byte_fallback=False)', length=256)
  config.model = dict(
    layers=6,
    width=384,
    heads=6,
    position='learned',
    feed_forward='gelu',
    norm='layernorm(1e-5)',
    initializer='normal(0.02)',
    depth_scaled=True,
    dropout=dict(embedding=0.2, attention=0.2, residual=0.2),
    vocab_multiple=1,
    dtype='bfloat16',
  )
  config.optimizer = dict(
    name='adamw(b1=0.9, b2=0.99, weight_decay=0.1)',
    learning_rate=1e-3,
    schedule='cosine(0.1)',
    warmup=100,
    clip=1.0,
    no_decay='bias|scale',  # the tables decay, too
  )
  config.training = dict(steps=5000, batch_size=64, evaluate_every=250)
  if arg == 'cpu':
    config.data.length = 64
    config.model.update(
      layers=4, width=128, heads=4, dtype='float32', dropout=dict(embedding=0.0, attention=0.0, residual=0.0)
    )
    config.training.update(steps=2000, batch_size=12)
  return config
