"""Generates images with a trained diffusion model, as a picture.

  tfm sample --workdir=runs/dit-digits --guidance=2
  tfm sample --workdir=runs/dit-digits --classes=0,3,8 --sampler='ddim(eta=0.5)' --to=some.png

The picture has a row of --num_samples images for each class. An image depends on its class, its number and
--seed only, and not on the others. --to=FILE.npy writes float32 [classes, samples, H, W, channels] instead,
between about -1 and 1, and is the only way for latents.

--guidance=W is classifier-free guidance: 1 follows the model for the class, 0 the model for no class, above 1
the first, away from the second. Samplers: ddim(eta), ddpm, and euler for rectified flow.

--config.model.kernel=auto generates with another kernel than that of the training.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfm import spec
from tfm.commands.attend import parse_numbers
from tfm.commands.cli import add_run_flags, assign_overrides, validate_flag
from tfm.config.names import FromTable
from tfm.data.progress_bar import track
from tfm.errors import require
from tfm.spec import MAX_SIZE


if TYPE_CHECKING:
  import numpy as np

  from tfm.decoding.denoising import Sampler
  from tfm.runs import load

ROWS = 64  # images generated at once
BORDER, SIDE = 2, 48  # pixels around an image of the picture, and about how large a small one is drawn
OVERRIDES = '--config.'  # --config.model.kernel=NAME


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add_run_flags(parser)
  add('--classes', metavar='N,N,…', help='classes to generate, counted from 0 (default: all)')
  add('--num_samples', type=int, default=8, metavar='N', help='images per class (default: 8)')
  add('--steps', type=int, default=50, metavar='N', help='calls of the model per image (default: 50)')
  add('--sampler', default='ddim', metavar='SPEC', help='ddim(eta), ddpm, euler (default: ddim)')
  add('--guidance', type=float, default=1.0, metavar='W', help='classifier-free guidance (default: 1, none)')
  add('--seed', type=int, default=0, metavar='N', help='of the noise (default: 0)')
  add('--to', metavar='FILE', help='a .png or a .npy file (default: samples.png in --workdir)')


def validate(args: argparse.Namespace) -> None:
  validate_flag('sampler', FromTable('ddim', 'decoding.denoising:SAMPLERS'), args.sampler)
  args.file = pathlib.Path(args.to or pathlib.Path(args.workdir) / 'samples.png')
  require(args.file.suffix in ('.png', '.npy'), f'--to={args.file} must end in .png or .npy')
  for flag, least, most in (('num_samples', 1, MAX_SIZE), ('steps', 1, MAX_SIZE), ('seed', 0, 2**32 - 1)):
    value = getattr(args, flag)
    require(least <= value <= most, f'--{flag}={value} must be at least {least} and at most {most:,}')
  require(0 <= args.guidance <= 1000, f'--guidance={args.guidance} must be at least 0 and at most 1000')


def main(args: argparse.Namespace) -> None:
  import numpy as np

  from tfm.data.images import MODES, encode_png
  from tfm.decoding.denoising import SAMPLERS
  from tfm.runs import load

  classes = parse_numbers('classes', args.classes)
  sampler = spec.build_from_table(args.sampler, SAMPLERS)
  run = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  count, shape = run.experiment.objective.condition_classes, run.experiment.source.image_shape
  require(
    count > 0, f'--workdir={args.workdir} holds no diffusion model; use tfm generate for a model of texts'
  )
  for number in classes or ():
    require(number < count, f'--classes: the model has no class {number}; use some of 0 to {count - 1}')
  require(
    args.file.suffix == '.npy' or shape[2] in MODES,
    f'--to={args.file} has no colours for {shape[2]} channels; name a .npy file',
  )
  chosen = classes or list(range(count))
  images = np.concatenate(list(generate(run, chosen, sampler, args)))
  images = images.reshape(len(chosen), args.num_samples, *shape)
  args.file.parent.mkdir(parents=True, exist_ok=True)
  if args.file.suffix == '.npy':
    np.save(args.file, images)
  else:
    args.file.write_bytes(encode_png(draw_grid(images)).getvalue())
  print(f'{args.file}: {args.num_samples} images of each of {len(chosen)} classes')


def generate(
  run: load.Run, classes: list[int], sampler: Sampler, args: argparse.Namespace
) -> Iterator[np.ndarray]:
  """Yields the images of all classes, `ROWS` at a time."""
  import jax
  import numpy as np

  from tfm.decoding.denoising import sample_images
  from tfm.parallel import sharding

  def sample(params, classes, numbers):
    return sample_images(
      run.model,
      params,
      run.experiment.objective,
      classes,
      numbers,
      sampler,
      args.steps,
      args.guidance,
      args.seed,
    )

  jitted = jax.jit(sample)
  which, numbers = (x.reshape(-1) for x in np.meshgrid(classes, np.arange(args.num_samples), indexing='ij'))
  starts = range(0, len(which), ROWS)
  with sharding.context(run.mesh, run.rules):
    for start in track(starts, 'images', len(starts)) if len(starts) > 1 else starts:
      part = slice(start, start + ROWS)
      yield np.asarray(jitted(run.params, which[part], numbers[part]))


def draw_grid(images: np.ndarray) -> np.ndarray:
  """Images [rows, columns, H, W, channels] between -1 and 1 as one, uint8, with white borders."""
  import numpy as np

  scale = max(1, SIDE // images.shape[2])
  pixels = np.clip(np.round((images + 1) * 127.5), 0, 255).astype(np.uint8)
  pixels = pixels.repeat(scale, 2).repeat(scale, 3)
  border = [(0, 0), (0, 0), (BORDER, BORDER), (BORDER, BORDER), (0, 0)]
  rows, columns, height, width, channels = (padded := np.pad(pixels, border, constant_values=255)).shape
  return padded.swapaxes(1, 2).reshape(rows * height, columns * width, channels)
