"""What surrounds an optimizer: clipping, weight decay by path, frozen parameters, learning rates by depth."""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tfm.optimizers.protocol import Optimizer
from tfm.parallel.sharding import Parameter
from tfm.shapes import Array


class MaskedTransformation(NamedTuple):
  """An `optax.GradientTransformation` that says what it trains.

  Attributes:
    init, update: as of optax.
    trains: path → whether that parameter is trained. What is not has no moments, and its updates are zero.
  """

  init: Callable
  update: Callable
  trains: Callable[[str], bool] = lambda path: True


def optimizer(
  method: Optimizer,
  rate: optax.Schedule,
  clip: float,
  no_decay: str,
  frozen: str = '',
  factor: Callable[[str, Array], Array] | None = None,
) -> MaskedTransformation:
  """Clips the global norm of the gradient at `clip` (0: not), then optimizes.

  Args:
    no_decay: searched in each parameter's path: where it is found, weight decay is left out.
    frozen: searched as well: what it is found in stays as it is; '': nothing.
    factor: (path, parameter) → factor on its learning rate, such as `by_depth`.
  """

  def decays(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: not re.search(no_decay, path_name(path)), params)

  parts = [optax.clip_by_global_norm(clip)] * bool(clip) + [method.transformation(rate, decays)]
  if factor:
    parts.append(
      optax.stateless(
        lambda updates, _: jax.tree_util.tree_map_with_path(
          lambda path, x: x * factor(path_name(path), x).astype(x.dtype), updates
        )
      )
    )
  made = optax.chain(*parts) if len(parts) > 1 else parts[0]
  if not frozen:
    return MaskedTransformation(*made)

  def trains(path):
    return not re.search(frozen, path)

  def trained(tree):
    """None for what is frozen: nothing is kept of it."""
    return jax.tree_util.tree_map_with_path(
      lambda path, x: x if trains(path_name(path)) else None, tree, is_leaf=lambda x: isinstance(x, Parameter)
    )

  def update(grads, state, params):
    updates, state = made.update(trained(grads), state, trained(params))
    return jax.tree.map(lambda x, u: jnp.zeros_like(x) if u is None else u, params, updates), state

  return MaskedTransformation(lambda params: made.init(trained(params)), update, trains)


def by_depth(
  decay: float, layers: int, turn: int, encoder_layers: int = 0, encoder_turn: int = 1
) -> Callable[[str, Array], Array]:
  """The factor decay^(L - l) on the learning rate of layer l of L, decay^(L + 1) of what is embedded, 1 of what comes
  after the layers (Clark et al. 2020, ELECTRA, app. B; Bao et al. 2022, BEiT, app.).

  Args:
    layers, turn: L, and blocks of one turn of the pattern; encoder_layers, encoder_turn: of an encoder-decoder's encoder.
  """

  def factor(path, x):
    own = path.removeprefix('encoder/')
    count, size = (layers, turn) if own == path else (encoder_layers, encoder_turn)
    if found := re.match(r'stack/layers/block_(\d+)/', own):
      return (decay ** (count - size * jnp.arange(len(x)) - int(found[1]))).reshape(-1, *[1] * (x.ndim - 1))
    if found := re.match(r'stack/layers_(\d+)/block_(\d+)/', own):
      return jnp.float32(decay ** (count - size * int(found[1]) - int(found[2])))
    if found := re.match(r'stack/rest/block_(\d+)/', own):
      return jnp.float32(decay ** (count % size - int(found[1])))
    return jnp.float32(decay ** (count + 1) if re.match(EMBEDDED, own) else 1.0)

  return factor


# What stands before the first layer.
EMBEDDED = r'embedding|source_embedding|type_embedding|position_|patches|class_token'


def path_name(path: tuple) -> str:
  """`stack/layers/block_0/mixer/q/kernel`: a parameter's path, boxes left out."""
  return '/'.join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
