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
from tfm.layers.diffusion_path import PATHS, PREDICTIONS, Path, combine, separate
from tfm.mixers.protocol import Context
from tfm.objectives._variational_bound import variational_bound
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

  With `learned_variance` the model also predicts where between its bounds the logarithm of the variance of a
  step towards the data lies, and `variational_bound` is added, whose gradient reaches the variance alone
  (Nichol & Dhariwal 2021, §3.1; the recipe of DiT).

  Attributes:
    classes: the number of classes; those of the data are numbered in the order of their names.
    schedule: the path: linear(steps, first, last), cosine(steps, offset) or straight(times).
    prediction: what the model predicts.
    class_dropout: the fraction of images whose class is dropped; in evaluation, none is.
    learned_variance: whether the variance of steps is learned, for the sampler `ddpm`.
    shape: H, W, Q of the images, from the source.

  Raises:
    ValueError: for another schedule or prediction, a prediction that says nothing about the data where a path
      begins, or a learned variance on a path without steps.
  """

  architectures = ('diffusion',)
  document_kinds = (('image', 'label'),)

  classes: Annotated[int, Interval(ge=1, le=MAX_SIZE)]
  schedule: str = 'linear'
  prediction: str = 'epsilon'
  class_dropout: Fraction = 0.1
  learned_variance: bool = False
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
    if self.learned_variance and self.path.is_straight:
      raise ValueError(
        f'schedule={self.schedule!r} has no steps, whose variance learned_variance=True could learn; use '
        "'linear' or 'cosine'"
      )

  @functools.cached_property
  def path(self) -> Path:
    """The path from data to noise."""
    return spec.build_from_table(self.schedule, PATHS)

  @property
  def condition_classes(self):
    return self.classes

  @property
  def outputs(self):
    return 2 if self.learned_variance else 1

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
    """Returns `loss`, the mean squared error, and `tokens`, the number of images; with a learned variance
    `variational_bound` in nats per channel of a pixel and step.
    """
    del size
    count = max(total['tokens'], 1)
    return {name: value if name == 'tokens' else value / count for name, value in total.items()}

  def __call__(self, model, params, batch, key):
    context = Context(batch['positions'], batch['segments'], train=key is not None, layout=self.layout)
    data, classes = batch['image'], batch['classes']
    noise, t, dropped = jax.vmap(functools.partial(self.draw, data.shape[1:]))(batch['noise_seed'])
    weights = (classes >= 0).astype(jnp.float32)  # -1: padding
    known = classes >= 0 if key is None else (classes >= 0) & ~dropped
    at = self.path.coefficients(t)
    x = combine(at, data, noise)
    predicted, reports = self.apply_model(
      model,
      params,
      key,
      lambda model, *inputs: model(*inputs)[0],
      x,
      self.path.model_time(t),
      jnp.where(known, classes, self.classes),
      context,
    )
    predicted, shares = jnp.split(predicted, [data.shape[-1]], -1)
    target = combine(PREDICTIONS[self.prediction](*at), data, noise)

    def add_up(values):
      return (values.reshape(len(data), -1).mean(1) * weights).sum()

    loss = add_up(jnp.square(predicted - target))
    sums = dict(loss=loss, tokens=weights.sum())
    total = loss
    if self.learned_variance:
      guess, _ = separate(self.prediction, jax.lax.stop_gradient(predicted), x, at)
      bound = add_up(variational_bound(self.path, data, guess, shares, t))
      # The bound of all steps, of which t is one, has the weight 0.001.
      total, sums['variational_bound'] = loss + 0.001 * self.path.steps * bound, bound
    return add_reports(total, sums, reports)

  def draw(self, shape: tuple[int, ...], noise_seed: jax.Array) -> tuple[jax.Array, ...]:
    """The noise of an image, its time, and whether its class is dropped."""
    keys = jax.random.split(jax.random.key(noise_seed), 3)
    noise, t = jax.random.normal(keys[IMAGE], shape), self.path.draw_time(keys[TIME])
    return noise, t, jax.random.bernoulli(keys[CLASS], self.class_dropout)


def add_noise_seed(seed: int, row: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
  """The row with the seed of its noise."""
  return row | dict(noise_seed=np.int32(random_bits(seed, index, 1, NOISE)[0] >> np.uint64(33)))
