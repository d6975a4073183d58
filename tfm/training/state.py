"""The state of training between steps, and its initialization on a mesh."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from tfm.layers.lora import Lora
from tfm.objectives.protocol import Reference
from tfm.parallel import sharding
from tfm.shapes import Array, Int, PyTree, UInt32
from tfm.training.loss_scale import LossScale
from tfm.training.spikes import Spikes


@struct.dataclass
class State:
  """A training run between two steps.

  Attributes:
    step: steps done.
    params, opt_state: of model and optimizer.
    key: randomness; step i uses fold_in(key, i), so nothing depends on call order.
    loss_scale: in float16, else None.
    spikes: statistics for skipping spikes, else None.
    reference: the frozen model of the objective, else None; it is in no checkpoint.
  """

  step: Int[Array, '']
  params: PyTree
  opt_state: PyTree
  key: UInt32[Array, '2']
  loss_scale: LossScale | None
  spikes: Spikes | None = None
  reference: Reference | None = None


def init_params(model: nn.Module, key: Array, batch: int, length: int, lora: Lora | None = None) -> PyTree:
  """The model's initial parameters, boxed, with LoRA adapters if `lora` is set; the model is traced on
  `batch` rows of `length` tokens.

  Raises:
    ValueError: for a parameter without logical axes.
  """
  params = model.init(key, *model.example(batch, length))['params']
  sharding.require_axes(params)
  return lora.add_adapters(params, key) if lora else params


def init(
  model: nn.Module,
  optimizer: optax.GradientTransformation,
  shape: tuple[int, int],
  scaled: bool,
  lora: Lora | None = None,
  spikes: bool = False,
) -> Callable[[Array], State]:
  """A pure function: seed key → initial state, with parameters boxed with their logical axes.

  Args:
    shape: (rows, tokens) of the batch that the model is traced on.
    scaled: whether the loss is scaled, for float16.
    lora: adapters, or None.
    spikes: whether the state has statistics for skipping spikes.
  """

  def make(seed):
    params_key, key = jax.random.split(seed)
    params = init_params(model, params_key, *shape, lora)
    return State(
      step=jnp.int32(0),
      params=params,
      opt_state=sharding.unbox_reshaped(optimizer.init(params), params),
      key=jax.random.key_data(key),
      loss_scale=LossScale.initial() if scaled else None,
      spikes=Spikes.initial() if spikes else None,
    )

  return make


def abstract_state(make: Callable[[Array], State]) -> State:
  """The shapes and boxes of the state, without allocating it."""
  return jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)))


def state_shardings(boxed: State, mesh: Mesh, rules: sharding.Rules) -> State:
  """The sharding of each leaf.

  Raises:
    ValueError: if the mesh does not divide a parameter, naming it.
  """
  sharding.validate_divisibility(boxed.params, mesh, rules)
  return sharding.named_shardings(boxed, mesh, rules)


def init_states(
  make: Callable[[Array], State], seeds: Sequence[int], where: State, mesh: Mesh, rules: sharding.Rules
) -> list[State]:
  """The initial state of each seed, computed under the shardings `where`."""
  with sharding.context(mesh, rules):
    initialize = jax.jit(lambda key: nn.unbox(make(key)), out_shardings=where)
    return [initialize(jax.random.key(seed)) for seed in seeds]
