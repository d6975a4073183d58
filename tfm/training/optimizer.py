"""Optimizers by name, all from optax."""

import re
from collections.abc import Callable

import jax
import optax

from tfm.shapes import PyTree

# (learning rate, mask of the parameters that decay) -> transformation
Maker = Callable[[optax.Schedule, Callable[[PyTree], PyTree]], optax.GradientTransformation]


def adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Maker:
  """Kingma & Ba 2015."""
  return lambda rate, decays: optax.adam(rate, b1, b2, eps)


def adamw(b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8, weight_decay: float = 0.1) -> Maker:
  """Adam with decoupled weight decay (Loshchilov & Hutter 2019); defaults of GPT-3's training."""
  return lambda rate, decays: optax.adamw(rate, b1, b2, eps, weight_decay=weight_decay, mask=decays)


def adafactor(weight_decay: float = 0.0, min_dim_size_to_factor: int = 128) -> Maker:
  """Factored second moments, no first (Shazeer & Stern 2018)."""
  return lambda rate, decays: optax.adafactor(
    rate, min_dim_size_to_factor=min_dim_size_to_factor,
    weight_decay_rate=weight_decay or None, weight_decay_mask=decays)


def lion(b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.1) -> Maker:
  """The sign of a momentum (Chen et al. 2023)."""
  return lambda rate, decays: optax.lion(rate, b1, b2, weight_decay=weight_decay, mask=decays)


def sgd(momentum: float = 0.0, nesterov: bool = False) -> Maker:
  """Gradient descent, with momentum if asked for."""
  return lambda rate, decays: optax.sgd(rate, momentum or None, nesterov)


OPTIMIZERS = {f.__name__: f for f in (adam, adamw, adafactor, lion, sgd)}


def optimizer(maker: Maker, rate: optax.Schedule, clip: float, no_decay: str) -> optax.GradientTransformation:
  """Clips the global norm of the gradient at `clip` (0: not), then optimizes.

  `no_decay` is searched in each parameter's path: where it is found, weight decay is left out.
  """
  def decays(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: not re.search(no_decay, path_name(path)), params)
  made = maker(rate, decays)
  return optax.chain(optax.clip_by_global_norm(clip), made) if clip else made


def path_name(path: tuple) -> str:
  """`stack/layers/block_0/mixer/q/kernel`: a parameter's path, boxes left out."""
  return '/'.join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
