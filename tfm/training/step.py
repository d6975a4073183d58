"""The pure training step."""

import functools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from tfm.layers.float32_gradients import operands_in_memory, reduction_dtype
from tfm.objectives.protocol import Objective, Reference
from tfm.parallel.compiler_options import CompilerSettings, Options
from tfm.parallel.mesh import current_platform
from tfm.parallel.microbatches import split_into_microbatches
from tfm.shapes import Array
from tfm.training.gradient_transforms import MaskedTransformation, keep_leaves, path_name
from tfm.training.loss_scale import all_finite
from tfm.training.state import State


Batch = Mapping[str, Array]
Metrics = dict[str, Array]
Step = Callable[[State, Batch], tuple[State, Metrics]]


def train_step(
  model: nn.Module,
  objective: Objective,
  optimizer: MaskedTransformation,
  rate: optax.Schedule,
  accumulation: int,
  skip_spikes: float = 0.0,
) -> Step:
  """(state, batch) → (state after one update, metrics of the batch).

  The gradient is that of the mean loss over all tokens of the batch, for any number of
  microbatches: sums over tokens are accumulated and divided once.

  Args:
    skip_spikes: factor on the mean gradient norm above which a step is skipped, for a state with `spikes`.
  """

  def summed(params, batch, key, scale, reference):
    # No gradient is computed for frozen parameters.
    params = jax.tree_util.tree_map_with_path(
      lambda path, x: x if optimizer.is_trainable(path_name(path)) else jax.lax.stop_gradient(x), params
    )
    total, sums = with_reference(objective, reference)(model, params, batch, key)
    return total * scale, sums

  def step(state, batch):
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    scale = jnp.float32(1) if state.loss_scale is None else state.loss_scale.scale
    gradient = jax.grad(functools.partial(summed, reference=state.reference), has_aux=True)
    if accumulation == 1:
      grads, sums = gradient(state.params, batch, key, scale)
    else:

      def add(total, microbatch):
        rows, i = microbatch
        return jax.tree.map(
          jnp.add, total, gradient(state.params, rows, jax.random.fold_in(key, i), scale)
        ), None

      rows = jax.tree.map(lambda x: split_into_microbatches(x, accumulation), batch)
      one = jax.tree.map(lambda x: x[0], rows)
      zero = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, state.params, one, key, scale)
      )
      (grads, sums), _ = jax.lax.scan(add, zero, (rows, jnp.arange(accumulation)))

    tokens = jnp.maximum(sums['tokens'], 1)
    grads = jax.tree.map(lambda g: g / (tokens * scale), grads)
    metrics = {name: value / tokens for name, value in sums.items() if name != 'tokens'}
    # All tokens that the model reads, for the throughput; `tokens` counts labels only.
    metrics |= dict(
      tokens=sums['tokens'],
      read=(batch['segments'] > 0).sum().astype(jnp.float32),
      gradient_norm=optax.tree.norm(keep_leaves(optimizer.follows_gradient, grads)),
      learning_rate=rate(state.step),
    )

    state = state.replace(opt_state=optimizer.load(state.opt_state, grads))
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    after = state.replace(
      step=state.step + 1, params=optax.apply_updates(state.params, updates), opt_state=opt_state
    )
    if state.spikes is not None:
      spike, spikes = state.spikes.update(metrics['gradient_norm'], skip_spikes)
      after = jax.tree.map(lambda new, old: jnp.where(spike, old, new), after, state)
      after = after.replace(step=state.step + 1, spikes=spikes)
      metrics |= dict(spike=spike.astype(jnp.float32), spikes=spikes.skipped.astype(jnp.float32))
    if state.loss_scale is not None:
      finite = all_finite(grads)
      after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
      after = after.replace(step=state.step + 1, loss_scale=state.loss_scale.update(finite))
      metrics |= dict(
        loss_scale=scale, skipped=1.0 - finite, gradient_norm=jnp.where(finite, metrics['gradient_norm'], 0)
      )
    return after.replace(opt_state=optimizer.store(after.opt_state)), metrics

  return step


def reduce_gradients_in(dtype: str, step: Step) -> Step:
  """A step whose devices add up gradients in a type, such as 'bfloat16', which halves what they send.

  Each device rounds its own sum to it; microbatches are accumulated in float32. The gradients of embedding
  tables, norms and biases are added up in float32 nevertheless.
  """

  def run(state, batch):
    with reduction_dtype(jnp.dtype(dtype)):
      return step(state, batch)

  return run


def compute_operands_once(compiler: CompilerSettings, step: Step) -> Step:
  """A step in which the operands of parameters' gradients are in memory before their products, under the
  preset `barriers`; see `operands_in_memory`.
  """

  def run(state, batch):
    with operands_in_memory('barriers' in compiler.presets(current_platform(), devices=1)):
      return step(state, batch)

  return run


def jitted(step: Step, where: State, options: Options | None = None) -> Callable:
  """The jitted step: it donates its state, whose shardings it keeps.

  Args:
    options: of the compiler; None: its defaults.
  """
  return jax.jit(step, donate_argnums=0, out_shardings=(where, None), compiler_options=options)


def evaluation_step(model: nn.Module, objective: Objective) -> Callable[..., Metrics]:
  """(params, batch, reference=None) → sums over the batch's tokens, without dropout."""

  def step(params, batch, reference=None):
    return with_reference(objective, reference)(model, params, batch, None)[1]

  return step


def with_reference(objective: Objective, reference: Reference | None) -> Callable:
  """The objective, with the frozen model that it compares with, if it has one."""
  return objective if reference is None else functools.partial(objective, reference=reference)
