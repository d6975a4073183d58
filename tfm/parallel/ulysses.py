"""Rows sharded along their length, whose devices share heads instead during attention (DeepSpeed-Ulysses)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tfm.errors import require
from tfm.parallel.mesh_request import DivisibilityConstraint
from tfm.parallel.sharding import mesh_axes_of, rules_context, shard, shard_count
from tfm.shapes import Array, Float, PyTree


AXIS = 'ulysses'
EXCHANGED = 'exchanged'  # the name of what attention gets, and gives, by checkpoint policies
ATTENTION_AXES = 'batch', 'length', 'heads', 'kv'


def exchange_tokens_for_heads(
  attention: Callable,
  q: Float[Array, 'B T H C'],
  k: Float[Array, 'B S K C'],
  v: Float[Array, 'B S K C2'],
  of_tokens: PyTree,
) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T'] | None]:
  """`attention(q, k, v, of_tokens) → (out, log-sum-exp or None)`; `ulysses` shards heads there, not tokens.

  n devices that hold 1/n of the tokens of all heads exchange them for all tokens of 1/n of the heads, compute
  any attention there, and exchange the output back (Jacobs et al. 2023, DeepSpeed-Ulysses, §3.1).
  Fewer key heads than shards are repeated, so that each device has those that its query heads read. If
  another mesh axis also shards rows, attention sees them sharded by that one (Fang & Zhao 2024, USP). Queries
  that the axis does not divide, as the single one of decoding, are not exchanged.

  Args:
    of_tokens: arrays [B, T], such as positions, of which every device then has all tokens, too.

  Raises:
    ValueError: if the mesh does not divide the heads.
  """
  n = shard_count(AXIS)
  if n == 1 or q.shape[1] % n or AXIS not in mesh_axes_of('length'):
    return attention(q, k, v, of_tokens)
  rules = rules_during_attention(nn.get_logical_axis_rules())
  axes = dict(rules)['heads']
  H, K, shards = q.shape[2], k.shape[2], shard_count(axes)
  require(H % shards == 0, indivisible_heads_message(H, axes, shards))
  copies = next(n for n in range(1, shards + 1) if K * n % shards == 0)
  k, v = (jnp.repeat(x, copies, axis=2) if copies > 1 else x for x in (k, v))
  # By tokens up to here, else the compiler shards what comes before by heads, too, and gathers what it needs.
  q, k, v = (shard(x, *ATTENTION_AXES) for x in (q, k, v))
  # What is exchanged has a name, so that the backward pass does not exchange it once more.
  with rules_context(rules):
    q, k, v = (checkpoint_name(shard(x, *ATTENTION_AXES), EXCHANGED) for x in (q, k, v))
    # Once, not in every block.
    of_tokens = jax.tree.map(lambda x: checkpoint_name(shard(x, 'batch', 'length'), EXCHANGED), of_tokens)
    out, log_sum_exp = attention(q, k, v, of_tokens)
  if log_sum_exp is not None:
    log_sum_exp = shard(log_sum_exp, 'batch', 'heads', 'length')
  return checkpoint_name(shard(out, *ATTENTION_AXES), EXCHANGED), log_sum_exp


def rules_during_attention(rules: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[tuple[str, tuple], ...]:
  """The rules with the mesh axis taken from `length` and given to the heads, as their innermost axis."""
  changed = dict(rules)
  changed['length'] = tuple(axis for axis in changed['length'] if axis != AXIS)
  changed['heads'] = *(changed.get('heads') or ()), AXIS
  return tuple(changed.items())


def indivisible_heads_message(heads: int, axes: Sequence[str], shards: int) -> str:
  """Why attention rejects a mesh that does not divide its heads."""
  names = ' × '.join(f'config.mesh.{axis}' for axis in axes)
  return (
    f'{names} = {shards} exchanges tokens for {heads} heads, which do not divide over {shards} devices; '
    f'change the heads or config.mesh.{AXIS}, or shard rows with config.mesh.sequence, which needs no heads'
  )


@dataclasses.dataclass(frozen=True)
class HeadConstraint(DivisibilityConstraint):
  """The product of some mesh axes must divide the heads, if tokens are exchanged for them."""

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return sizes[AXIS] == 1 or super().is_satisfied(sizes)
