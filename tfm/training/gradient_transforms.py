"""What surrounds an optimizer: clipping, weight decay by path, frozen parameters, learning rates by depth,
biases that balance experts, weights of unit length.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tfm.layers.load_balance import BALANCE_BIAS
from tfm.layers.unit_vectors import normalize
from tfm.optimizers.protocol import Optimizer
from tfm.parallel.sharding import Parameter
from tfm.shapes import Array, PyTree


class MaskedTransformation(NamedTuple):
  """An `optax.GradientTransformation` with a predicate for the parameters that it trains.

  Attributes:
    init, update: as in optax.
    is_trainable: path → whether that parameter is trained; one that is not has no moments and zero updates.
    follows_gradient: path → whether its update comes from a gradient, which counts in the norm of all.
    load, store: (state, gradients) → the state on the device; state → where it is between updates.
  """

  init: Callable
  update: Callable
  is_trainable: Callable[[str], bool] = lambda path: True
  follows_gradient: Callable[[str], bool] = lambda path: True
  load: Callable[[PyTree, PyTree], PyTree] = lambda state, grads: state
  store: Callable[[PyTree], PyTree] = lambda state: state


def optimizer(
  method: Optimizer,
  rate: optax.Schedule,
  clip: float,
  no_decay: str,
  frozen: str = '',
  factors: Sequence[Callable[[str, Array], Array]] = (),
) -> MaskedTransformation:
  """Clips the global norm of the gradient to `clip` (0: no clipping), then applies the optimizer.

  Args:
    no_decay: regular expression searched in parameter paths; a match has no weight decay.
    frozen: regular expression searched in parameter paths; a match is not trained; '' for none.
    factors: (path, parameter) → a factor on its learning rate, such as `layerwise_decay`; they multiply.
  """

  def decays(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: not re.search(no_decay, path_name(path)), params)

  parts = [optax.clip_by_global_norm(clip)] * bool(clip) + [method.transformation(rate, decays)]
  parts += [_scale_updates(factor) for factor in factors]
  transformation = optax.chain(*parts) if len(parts) > 1 else parts[0]
  if not frozen:
    return MaskedTransformation(*transformation)

  def is_trainable(path):
    return not re.search(frozen, path)

  def update(grads, state, params):
    trained = keep_leaves(is_trainable, params)
    updates, state = transformation.update(keep_leaves(is_trainable, grads), state, trained)
    return jax.tree.map(lambda x, u: jnp.zeros_like(x) if u is None else u, params, updates), state

  return MaskedTransformation(
    lambda params: transformation.init(keep_leaves(is_trainable, params)), update, is_trainable
  )


def _scale_updates(factor: Callable[[str, Array], Array]) -> optax.GradientTransformation:
  return optax.stateless(
    lambda updates, _: jax.tree_util.tree_map_with_path(
      lambda path, x: x * factor(path_name(path), x).astype(x.dtype), updates
    )
  )


def balance_experts(others: MaskedTransformation, rate: float) -> MaskedTransformation:
  """Moves the biases of `layers/load_balance.py` by -rate · sign(excess load), which is their gradient, and
  all other parameters as `others` does: clipping, decay and moments see none of the biases.
  """

  def follows_gradient(path):
    return path.split('/')[-1] != BALANCE_BIAS

  def update(grads, state, params):
    updates, state = others.update(
      keep_leaves(follows_gradient, grads), state, keep_leaves(follows_gradient, params)
    )

    def move(path, excess, update):
      if update is None:
        return -rate * jnp.sign(excess) * others.is_trainable(path_name(path))
      return update

    return jax.tree_util.tree_map_with_path(move, grads, updates), state

  return MaskedTransformation(
    lambda params: others.init(keep_leaves(follows_gradient, params)),
    update,
    others.is_trainable,
    follows_gradient,
  )


def keep_unit_length(others: MaskedTransformation, axes: Mapping[str, int]) -> MaskedTransformation:
  """Updates as `others` does, after which the vectors of matrices along an axis are brought back to length 1.

  Args:
    axes: path of a matrix → the axis along which it consists of such vectors.
  """

  def update(grads, state, params):
    updates, state = others.update(grads, state, params)

    def back_to_sphere(path, x, update):
      name = path_name(path)
      if name not in axes or not others.is_trainable(name):
        return update
      return normalize(x + update, axes[name]) - x

    return jax.tree_util.tree_map_with_path(back_to_sphere, params, updates), state

  return others._replace(update=update)


def offload_state(others: MaskedTransformation) -> MaskedTransformation:
  """The optimizer whose state is in host memory between updates, as in ZeRO-Offload (Ren et al. 2021); unlike
  there, the device computes the update.
  """

  def load(state, grads):
    # Not before the gradients are there, when the activations no longer need their memory.
    state, _ = jax.lax.optimization_barrier((state, grads))
    return jax.device_put(state, jax.memory.Space.Device)

  return others._replace(load=load, store=lambda state: jax.device_put(state, jax.memory.Space.Host))


def keep_leaves(predicate: Callable[[str], bool], tree: PyTree) -> PyTree:
  """The tree, boxed or not, with None for the leaves whose path does not satisfy the predicate."""
  return jax.tree_util.tree_map_with_path(
    lambda path, x: x if predicate(path_name(path)) else None,
    tree,
    is_leaf=lambda x: isinstance(x, Parameter),
  )


def layerwise_decay(
  decay: float, layers: int, turn: int, encoder_layers: int = 0, encoder_turn: int = 1
) -> Callable[[str, Array], Array]:
  """The factor decay^(L - l) on the learning rate of layer l of L, decay^(L + 1) on embeddings, 1 after
  the layers (Clark et al. 2020, ELECTRA, app. B; Bao et al. 2022, BEiT, app.).

  Args:
    layers, turn: L, and the number of blocks in the pattern; encoder_layers, encoder_turn: those of the
      encoder.
  """

  def factor(path, x):
    own = path.removeprefix('encoder/')
    count, size = (layers, turn) if own == path else (encoder_layers, encoder_turn)
    if match := re.match(r'stack/layers/block_(\d+)/', own):
      return (decay ** (count - size * jnp.arange(len(x)) - int(match[1]))).reshape(-1, *[1] * (x.ndim - 1))
    if match := re.match(r'stack/layers_(\d+)/block_(\d+)/', own):
      return jnp.float32(decay ** (count - size * int(match[1]) - int(match[2])))
    if match := re.match(r'stack/rest/block_(\d+)/', own):
      return jnp.float32(decay ** (count % size - int(match[1])))
    return jnp.float32(decay ** (count + 1) if re.match(EMBEDDED, own) else 1.0)

  return factor


# Parameters before the first layer.
EMBEDDED = r'embedding|source_embedding|type_embedding|position_|patches|class_token'


def path_name(path: tuple) -> str:
  """`stack/layers/block_0/mixer/q/kernel`: a parameter's path, without boxes."""
  return '/'.join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
