"""CLIP (Radford et al. 2021): images and texts embedded into one space by contrast.

Question:  does a model that only learns which text belongs to which image classify images by the names of
           their classes?
Source:    Radford et al. 2021, §2 and Tables 18 and 20, https://arxiv.org/abs/2103.00020: ViT-B/32, B/16 and
           L/14 with their batch size, optimizer, schedule and steps (32 epochs of 400 million pairs).
           Difference: the data, which are not public; a folder of labelled images and a template take their
           place, bytes that of their tokens, and shifts that of random crops. digits is ours.
Command:   tfm train --config=configs/clip.py:digits --workdir=runs/clip       (laptop size; the default)
           tfm evaluate --workdir=runs/clip --split=test
           tfm inspect --config=configs/clip.py:b32                            (b16, l14 likewise)
Cost:      digits: 1:20 minutes on 2 cores. Other sizes: not measured.
Expected:  digits, seed 0, 1500 steps: by the names alone, 89 of 92 test images are classified correctly
           (zero_shot 0.967; loss 1.809) and 95 of 100 validation images. The loss stays near
           ln(64 / 10) = 1.86, because a batch of 64 has about six texts of each digit, and no image says
           which template is its own. Other sizes: not measured.
           Published: b32 classifies 63.2 % of ImageNet's validation images by their names (Table 11).
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Size(NamedTuple):
  """A row of Table 20, and the side of a patch in pixels."""

  patch: int
  image_layers: int
  image_width: int
  image_heads: int
  layers: int
  width: int
  heads: int
  learning_rate: float


SIZES = {
  'b32': Size(32, 12, 768, 12, 12, 512, 8, 5e-4),
  'b16': Size(16, 12, 768, 12, 12, 512, 8, 5e-4),
  'l14': Size(14, 24, 1024, 16, 12, 768, 12, 4e-4),
  'digits': Size(2, 3, 64, 4, 2, 64, 4, 1e-3),
}
DIGITS = 'zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine'
TEMPLATES = 'a photo of the digit {}', 'the number {}', 'a handwritten {}', 'this is a {}'


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, SIZES)
  size = SIZES[arg or 'digits']
  config = ConfigDict()
  config.objective = "contrastive(('a photo of a {}',))"
  config.data = dict(
    source="""captions("folder('images', 224)", ('a photo of a {}',))""",
    packing='each(crop=28)',
    length=77,
    reader_threads=16,
  )
  config.model = dict(
    architecture='image_text',
    patch=size.patch,
    layers=size.layers,
    width=size.width,
    heads=size.heads,
    encoder=dict(
      layers=size.image_layers, width=size.image_width, heads=size.image_heads, embedding_norm=True
    ),
    position='learned',
    bias=True,
    feed_forward='quick_gelu',
    initializer='lecun_normal',  # in place of the code's widths^-0.5, which are nearly the same
    dtype='bfloat16',
  )
  config.optimizer = dict(
    name='adamw(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.2)',
    learning_rate=size.learning_rate,
    schedule='cosine(0.0)',
    warmup=2000,
    clip=0.0,
  )
  config.training = dict(steps=390_625, batch_size=32_768, evaluate_every=1000)
  if size is SIZES['digits']:
    names = tuple(x for digit, name in enumerate(DIGITS) for x in (str(digit), name))
    config.objective = f'contrastive({TEMPLATES})'
    config.data.update(
      source=f"captions('digits', {TEMPLATES}, {names})", packing='each(crop=1)', length=32, reader_threads=2
    )
    config.model.update(dtype='float32')
    config.optimizer.update(name='adamw(b1=0.9, b2=0.999, weight_decay=0.2)', warmup=100, clip=1.0)
    config.training.update(steps=1500, batch_size=64, evaluate_every=250)
  return config
