"""The diffusion transformer (Peebles & Xie 2023): images from noise, for a class.

Question:  how well does a Transformer of patches generate images by denoising them?
Source:    Peebles & Xie 2023, Table 1 and §4 (class-conditional ImageNet: latents of 32 × 32 × 4, Adam at a
           constant 1e-4 without weight decay, batch size 256, 7 million steps for XL/2),
           https://arxiv.org/abs/2212.09748; linear schedule of 1000 steps, classes dropped from 10 % of the
           images, learned variances. digits is ours: rectified flow on pixels.
Command:   tfm train --config=configs/dit.py --workdir=runs/dit      (xl2; s2, s4, s8, b2, … xl8 likewise)
           tfm train --config=configs/dit.py:digits --workdir=runs/dit-digits             (laptop size)
           tfm sample --workdir=runs/dit-digits --guidance=2 --to=digits.png
Cost:      digits: nine minutes of CPU time. Other sizes: not measured.
Expected:  digits, seed 0: validation loss 0.351; a support vector machine takes 50 images of each class,
           sampled with --guidance=2, for that class (docs/how-to/diffusion.md, also for the draws of its
           seed). Other sizes: not measured.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Size(NamedTuple):
  """A row of Table 1."""

  layers: int
  width: int
  heads: int


TABLE_1 = {'s': Size(12, 384, 6), 'b': Size(12, 768, 12), 'l': Size(24, 1024, 16), 'xl': Size(28, 1152, 16)}
# Name → (size, side of a patch).
SIZES = {f'{name}{patch}': (size, patch) for name, size in TABLE_1.items() for patch in (2, 4, 8)}
SIZES['digits'] = Size(4, 128, 4), 2


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, SIZES)
  size, patch = SIZES[arg or 'xl2']
  config = ConfigDict()
  config.objective = 'diffusion(1000, schedule="linear", prediction="epsilon", learned_variance=True)'
  config.data = dict(
    source="latents('imagenet256', 32)", packing='each', length=(32 // patch) ** 2, reader_threads=16
  )
  config.model = size._asdict() | dict(
    architecture='diffusion',
    patch=patch,
    residual='adaln_zero',
    position='sinusoidal_2d',
    norm='layernorm(1e-6, bias=False, scale=False)',
    bias=True,
    feed_forward='gelu_tanh',
    initializer='xavier_uniform',
    depth_scaled=False,
  )
  config.optimizer = dict(
    name='adamw(b1=0.9, b2=0.999, weight_decay=0.0)',
    learning_rate=1e-4,
    schedule='constant',
    warmup=0,
    clip=0.0,
  )
  config.training = dict(steps=7_000_000, batch_size=256, evaluate_every=10_000)
  if arg == 'digits':
    config.objective = 'diffusion(10, schedule="straight", prediction="flow")'
    config.data.update(source='digits', length=16, reader_threads=2)
    config.optimizer.update(learning_rate=2e-3, schedule='cosine(0.0)', warmup=100, clip=1.0)
    config.training.update(steps=3000, batch_size=64, evaluate_every=500)
  return config
