"""Diffusion and rectified flow: a noisy image is traced back to its data."""

import dataclasses
import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval

from tfm import spec
from tfm.data.packing.protocol import MappedRows, random_bits
from tfm.layers.diffusion_path import PATHS, PREDICTIONS, Path, combine
from tfm.mixers.protocol import Context
from tfm.objectives.classification import require_classes
from tfm.objectives.protocol import Objective, add_reports
from tfm.spec import MAX_SIZE, Fraction, Size


NOISE = 3  # the purpose of random bits, beside those of the packing
TIME, IMAGE, CLASS = range(3)  # the purposes of a row's key


@dataclasses.dataclass(frozen=True)
class Diffusion(Objective):
  """Σ over images of the mean over pixels of (model(x_t, t, class) - target)², where x_t = a_t x_0 + s_t ε is
  a point on the path from the image x_0 to noise ε ~ N(0, 1), and t is drawn at random:

    target = ε                'epsilon' (Ho et al. 2020, eq. 14)
             a_t ε - s_t x_0  'v' (Salimans & Ho 2022, App. D)
             ε - x_0          'flow' (Liu et al. 2022, eq. 1)

  The class is dropped for some images, so that the model knows the distribution of all classes, too, for
  classifier-free guidance (Ho & Salimans 2022, algorithm 1). Noise, time and dropping depend on the seed and
  on the row's place in training; in evaluation they are always the same.

  Attributes:
    classes: the number of classes; those of the data are numbered in the order of their names.
    schedule: the path: linear(steps, first, last), cosine(steps, offset) or straight(times).
    prediction: what the model predicts.
    class_dropout: the fraction of images whose class is dropped; in evaluation, none is.
    shape: H, W, Q of the images, from the source.

  Raises:
    ValueError: for another schedule or prediction, or a prediction that says nothing about the data where a
      path begins.
  """

  architectures = ('diffusion',)
  document_kinds = (('image', 'label'),)

  classes: Annotated[int, Interval(ge=1, le=MAX_SIZE)]
  schedule: str = 'linear'
  prediction: str = 'epsilon'
  class_dropout: Fraction = 0.1
  shape: tuple[Size, ...] = ()

  def __post_init__(self):
    if self.prediction not in PREDICTIONS:
      raise ValueError(
        f'prediction={self.prediction!r} is not known; use one of {", ".join(map(repr, PREDICTIONS))}'
      )
    if self.path.is_straight and self.prediction == 'epsilon':
      raise ValueError(
        f'schedule={self.schedule!r} begins with noise alone, of which prediction={self.prediction!r} says '
        "nothing new; use 'flow' or 'v'"
      )

  @functools.cached_property
  def path(self) -> Path:
    """The path from data to noise."""
    return spec.build_from_table(self.schedule, PATHS)

  @property
  def condition_classes(self):
    return self.classes

  @property
  def suggested_packing(self):
    return 'each'

  @property
  def required_fields(self):
    return frozenset({'classes'})

  def rows(self, packing, tokens, length, seed, tokenizer):
    require_classes(tokens, self.classes)
    rows = super().rows(packing, tokens, length, seed, tokenizer)
    return MappedRows(rows, functools.partial(add_noise_seed, 0 if seed is None else seed))

  def padding_row(self, length):
    row = {field: np.zeros(length, np.int32) for field in ('positions', 'segments')}
    image = np.zeros(self.shape, np.float32)
    return row | dict(image=image, classes=np.int32(-1), noise_seed=np.int32(0))

  def summarize(self, total, size):
    """Returns `loss`, the mean squared error, and `tokens`, the number of images."""
    del size
    return dict(loss=total['loss'] / max(total['tokens'], 1), tokens=total['tokens'])

  def __call__(self, model, params, batch, key):
    context = Context(batch['positions'], batch['segments'], train=key is not None, layout=self.layout)
    data, classes = batch['image'], batch['classes']
    noise, t, dropped = jax.vmap(functools.partial(self.draw, data.shape[1:]))(batch['noise_seed'])
    weights = (classes >= 0).astype(jnp.float32)  # -1: padding
    known = classes >= 0 if key is None else (classes >= 0) & ~dropped
    at = self.path.coefficients(t)
    predicted, reports = self.apply_model(
      model,
      params,
      key,
      lambda model, *inputs: model(*inputs)[0],
      combine(at, data, noise),
      self.path.model_time(t),
      jnp.where(known, classes, self.classes),
      context,
    )
    target = combine(PREDICTIONS[self.prediction](*at), data, noise)
    loss = (jnp.square(predicted - target).reshape(len(data), -1).mean(1) * weights).sum()
    return add_reports(loss, dict(loss=loss, tokens=weights.sum()), reports)

  def draw(self, shape: tuple[int, ...], noise_seed: jax.Array) -> tuple[jax.Array, ...]:
    """The noise of an image, its time, and whether its class is dropped."""
    keys = jax.random.split(jax.random.key(noise_seed), 3)
    noise, t = jax.random.normal(keys[IMAGE], shape), self.path.draw_time(keys[TIME])
    return noise, t, jax.random.bernoulli(keys[CLASS], self.class_dropout)


def add_noise_seed(seed: int, row: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
  """The row with the seed of its noise."""
  return row | dict(noise_seed=np.int32(random_bits(seed, index, 1, NOISE)[0] >> np.uint64(33)))
