"""The Vision Transformer (Dosovitskiy et al. 2021): an image is a text of patches.

Question:  what does a Transformer tell of an image that knows nothing of images but where its patches stand?
Source:    https://arxiv.org/abs/2010.11929, Table 1, and App. B, Table 3, the recipe from scratch on ImageNet-1k: 300
           epochs of 4096 images, Adam with weight decay. Ti and S are those of Steiner et al. 2022. Images are their
           middles, flipped and shifted by up to 28 pixels, where the paper cuts out a random part of any size.
Command:   tfm train --config=configs/vit.py --workdir=runs/vit                 (b16; vit.py:ti16, s16, b32, l16)
           tfm train --config=configs/vit.py:digits --workdir=runs/digits      (minutes on a laptop)
           tfm evaluate --workdir=runs/digits --split=test
           tfm inspect --config=configs/vit.py --config.data.source="images('imagenet2012', 384)" --config.data.length=577 \\
             --config.model.position='learned_2d(original=(14, 14))'     (another resolution, the same parameters)
Expected:  b16 77.9 % right on ImageNet's validation images at 384 pixels (the paper's Table 5). Not run here.
           digits, seed 0: 89 of the 92 test images right (accuracy 0.967, f1 0.964) after 1500 steps, and 99 of the 100
           of validation; five minutes on two CPU cores that had other work besides.
"""

from typing import NamedTuple

from ml_collections import ConfigDict


class Size(NamedTuple):
  """A row of Table 1, and the pixels of a patch."""

  layers: int
  width: int
  heads: int
  patch: int


SIZES = {
  'ti16': Size(12, 192, 3, 16),
  's16': Size(12, 384, 6, 16),
  'b16': Size(12, 768, 12, 16),
  'b32': Size(12, 768, 12, 32),
  'l16': Size(24, 1024, 16, 16),
  'digits': Size(4, 64, 4, 2),
}


def get_config(arg: str = '') -> ConfigDict:
  if (arg or 'b16') not in SIZES:
    raise ValueError(f'configs/vit.py takes a size, one of {", ".join(SIZES)}, not {arg!r}')
  size = SIZES[arg or 'b16']
  config = ConfigDict()
  config.objective = 'classification(1000)'
  config.data = dict(
    source="images('imagenet2012', 224)",
    packing='each(flip=True, crop=28)',
    length=(224 // size.patch) ** 2 + 1,
    reader_threads=16,
  )
  config.model = size._asdict() | dict(
    architecture='encoder',
    position='learned',
    norm='layernorm(1e-6)',
    bias=True,
    feed_forward='gelu',
    pooling='first',
    initializer='xavier_uniform',
    depth_scaled=False,
    dropout=dict(embedding=0.1, attention=0.0, residual=0.1),
    dtype='bfloat16',
  )
  config.optimizer = dict(
    name='adamw(b1=0.9, b2=0.999, weight_decay=0.3)',
    learning_rate=3e-3,
    schedule='cosine',
    warmup=10_000,
    clip=1.0,
  )
  config.training = dict(steps=94_000, batch_size=4096, evaluate_every=1000)
  if arg == 'digits':
    config.objective = 'classification(10)'
    config.data.update(source='digits', packing='each(crop=1)', length=17, reader_threads=2)
    config.model.update(dtype='float32')
    config.optimizer.update(learning_rate=1e-3, warmup=100, name='adamw(b1=0.9, b2=0.999, weight_decay=0.1)')
    config.training.update(steps=1500, batch_size=64, evaluate_every=250)
  return config
