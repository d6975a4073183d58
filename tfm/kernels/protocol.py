"""The kernel slot: how attention is computed. Every kernel computes the same numbers as `dense`."""

import abc
import functools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.ad_checkpoint import checkpoint_name
from jax.extend.random import threefry2x32_p

from tfm.errors import require
from tfm.kernels._row_normalizers import NORMALIZERS
from tfm.layers.dot_product import scaled_dot
from tfm.layers.locations import Locations, same_document
from tfm.parallel import mesh
from tfm.parallel.ulysses import exchange_tokens_for_heads
from tfm.shapes import Array, Bool, Float, Int


# The name under which a policy of rematerialization stores what the backward pass needs of the forward pass.
CHECKPOINT_NAME = 'attention'
# JAX's primitives of fused attention, whose residuals have no name.
FUSED_ATTENTION = frozenset({'dot_product_attention_fwd_wrapper'})
# The inputs that have one number for each token.
OF_TOKENS = 'q_positions', 'k_positions', 'q_segments', 'k_segments', 'k_prefix'
# Why vendors' kernels are not compiled for a GPU that is not attached.
NO_GPU_ATTACHED = 'it depends on the compute capability of the GPU, and none is attached'


@struct.dataclass
class AttentionInputs:
  """The inputs of attention besides q, k and v.

    logits  = cap(score(q, k) + bias(q, k, q_locations, k_locations)),  cap(x) = soft_cap · tanh(x / soft_cap)
    weights = softmax over the visible keys, with exp(sink of the head) added to the denominator,
              or σ(logits + sigmoid_offset) of each visible key

  Query head h of H reads key head h // (H/K). A key is visible to a query if both are in one segment and the
  mask shows it; segment 0 is padding, visible to no query. The output of a query without visible keys is
  zero.

  Attributes:
    score: `(q [B K G T C], k [B K S C]) → logits [B K G T S]` in float32, a `jax.tree_util.Partial` whose
      leaves are learned parameters.
    bias: `(q, k, q_locations, k_locations) → logits [B K G T S]` or an array that broadcasts to it, a
      `Partial` likewise; or None.
    has_blockwise_bias: whether the bias may be computed block by block.
    has_relative_bias: whether the bias depends on the head and the distance alone.
    lineage: which keys a query may see, if mask and segments show them; None: all
      (`tfm.mixers.protocol.Context.lineage`).
    mask: predicate on positions; layout: what the positions guarantee (`tfm.masks.protocol.LAYOUTS`).
    k_prefix: the prefix length of each key's document, for masks that require it.
    sinks: one learned logit per head, or None.
    normalizer: 'softmax', or 'sigmoid' with `sigmoid_offset`, b of Ramapuram et al. 2024, eq. 3.
    row_normalizer: `(logits [B K G T S], visible [B 1 1 T S], inputs) → weights`, a `Partial` likewise, in
      place of `normalizer`, for weights that need whole rows of logits at once; or None.
    soft_cap: 0 for none (Gemma 2: 50).
    dropout: rate at which weights are dropped if there is a `dropout_key`.
  """

  score: Callable
  bias: Callable | None
  q_positions: Int[Array, 'B T']
  k_positions: Int[Array, 'B S']
  q_segments: Int[Array, 'B T']
  k_segments: Int[Array, 'B S']
  k_prefix: Int[Array, 'B S'] | None = None
  sinks: Float[Array, 'H'] | None = None
  dropout_key: Array | None = None
  row_normalizer: Callable | None = None
  lineage: Bool[Array, 'B T S'] | None = None
  mask: Callable = struct.field(pytree_node=False, kw_only=True)
  layout: str = struct.field(pytree_node=False, default='arbitrary')
  normalizer: str = struct.field(pytree_node=False, default='softmax')
  sigmoid_offset: float = struct.field(pytree_node=False, default=0.0)
  soft_cap: float = struct.field(pytree_node=False, default=0.0)
  dropout: float = struct.field(pytree_node=False, default=0.0)
  has_blockwise_bias: bool = struct.field(pytree_node=False, default=True)
  has_relative_bias: bool = struct.field(pytree_node=False, default=False)

  @property
  def q_locations(self) -> Locations:
    """Where the queries stand."""
    return Locations(self.q_positions, self.q_segments)

  @property
  def k_locations(self) -> Locations:
    """Where the keys stand."""
    return Locations(self.k_positions, self.k_segments)

  @property
  def uses_dropout(self) -> bool:
    """Whether any weights are dropped."""
    return self.dropout > 0 and self.dropout_key is not None

  @property
  def scale(self) -> float | None:
    """The factor if the score is factor · q·k; None for another score."""
    function = getattr(self.score, 'func', None)  # of a Partial without leaves
    return function.keywords['scale'] if getattr(function, 'func', None) is scaled_dot else None

  def unsupported_feature_reason(self, *supported: str) -> str | None:
    """Why a kernel that supports only these of `OPTIONAL_FEATURES` rejects the inputs, or None."""
    special = (OPTIONAL_FEATURES[name] for name in OPTIONAL_FEATURES if name not in supported)
    return next((reason for is_requested, reason in special if is_requested(self)), None)

  def not_blockwise_reason(self) -> str | None:
    """Why a kernel that computes block by block rejects the inputs; None if it does not."""
    if self.row_normalizer is not None:
      return "the mixer needs whole rows of logits at once; use kernel='dense'"
    if self.lineage is not None:
      return "it supports no tree of tokens; use kernel='dense'"
    if self.bias is None or self.has_blockwise_bias:
      return None
    return "the bias of the position needs all keys of a row at once; use kernel='dense'"

  def logits(
    self,
    q: Float[Array, 'B K G T C'],
    k: Float[Array, 'B K S C'],
    q_locations: Locations,
    k_locations: Locations,
  ) -> Float[Array, 'B K G T S']:
    """The capped logits of some queries and keys, in float32, before masking."""
    logits = self.score(q, k)
    if self.bias is not None:
      bias = self.bias(q, k, q_locations, k_locations)
      require(
        bias.ndim == logits.ndim and all(b in (1, n) for b, n in zip(bias.shape, logits.shape)),
        f'the bias of the position has the shape {bias.shape}, and the logits [B K G T S] have '
        f'{logits.shape}; give it the same axes, each of that length or 1',
      )
      logits = logits + bias
    return self.soft_cap * jnp.tanh(logits / self.soft_cap) if self.soft_cap else logits

  def visibility_mask(self) -> Bool[Array, 'B T S']:
    """Which key is visible to which query."""
    prefix = None if self.k_prefix is None else self.k_prefix[:, None, :]
    visible = self.mask.bind_prefix(prefix)(self.q_positions[:, :, None], self.k_positions[:, None, :])
    visible &= same_document(self.q_segments, self.k_segments)
    return visible if self.lineage is None else visible & self.lineage

  def weights(
    self, q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
  ) -> tuple[Float[Array, 'B K G T S'], Float[Array, 'B H T'] | None]:
    """The weights before dropout, and the log of their denominator (None for a normalizer without one)."""
    logits = self.logits(q, k, self.q_locations, self.k_locations)
    visible = self.visibility_mask()[:, None, None]
    if self.row_normalizer is not None:
      return self.row_normalizer(logits, visible, self), None
    return NORMALIZERS[self.normalizer](logits, visible, self)

  def dropout_keep_mask(
    self, shape: tuple[int, int, int], q_index: Int[Array, 'T'], k_index: Int[Array, 'S'], queries: int
  ) -> Bool[Array, 'B K G T S']:
    """Which weights of a `(B, K, G)` batch dropout keeps, for the given query and key indices.

    Each draw depends on the dropout key and the indices (row, head, query, key) alone, so that all kernels
    and all block sizes drop the same weights.

    Args:
      queries: the total number of queries.
    """
    B, K, G = shape
    row = jnp.arange(B * K * G, dtype=jnp.uint32).reshape(B, K, G, 1, 1)
    high = row * jnp.uint32(queries) + q_index.astype(jnp.uint32)[None, None, None, :, None]
    full = (*shape, len(q_index), len(k_index))
    low = jnp.broadcast_to(k_index.astype(jnp.uint32)[None, None, None, None, :], full)
    first, second = jax.random.key_data(self.dropout_key).astype(jnp.uint32)[:2]
    bits, _ = threefry2x32_p.bind(
      jnp.broadcast_to(first, full), jnp.broadcast_to(second, full), jnp.broadcast_to(high, full), low
    )
    return bits >= jnp.uint32(round(self.dropout * 2**32))


# Features that not every kernel supports → (whether the inputs request it, why a kernel without it rejects
# them).
OPTIONAL_FEATURES = {
  'score': (lambda inputs: inputs.scale is None, 'it supports no score but the scaled dot product'),
  'bias': (lambda inputs: inputs.bias is not None, 'it supports no bias on the logits'),
  'sinks': (lambda inputs: inputs.sinks is not None, 'it supports no sinks in the denominator'),
  'sigmoid': (
    lambda inputs: inputs.normalizer != 'softmax' or inputs.row_normalizer is not None,
    'it normalizes by softmax only',
  ),
  'soft_cap': (lambda inputs: inputs.soft_cap > 0, 'it supports no soft cap'),
  'dropout': (
    lambda inputs: inputs.uses_dropout,
    'it supports no dropout that equals that of the other kernels',
  ),
  'lineage': (lambda inputs: inputs.lineage is not None, 'it supports no tree of tokens'),
  'prefix': (lambda inputs: inputs.mask.required_fields, 'it compiles the mask, and a prefix is data'),
}


@functools.lru_cache(maxsize=64)
def mask_band(mask: Callable, T: int, S: int) -> tuple[int | None, int | None] | None:
  """(left, right) if each of T queries sees, by index, exactly those of S keys from q - left to q + right.

  None for a side without a limit. None instead of the pair if the mask is not such a band, or is not declared
  relative.
  """
  if not mask.relative:
    return None
  distance = np.arange(1 - S, T)
  visible = np.flatnonzero(mask(np.maximum(distance, 0), np.maximum(-distance, 0)))
  if not len(visible) or len(visible) <= visible[-1] - visible[0]:
    return None
  return (
    None if visible[-1] == len(distance) - 1 else int(distance[visible[-1]]),
    None if visible[0] == 0 else -int(distance[visible[0]]),
  )


def unsupported_mask_reason(inputs: AttentionInputs, T: int, S: int) -> str | None:
  """Why vendors' kernels do not support the mask; None if they do.

  They support rows of one document each, with as many queries as keys under a causal mask, and masks that are
  causal, causal with a window to the left, or full.
  """
  if inputs.layout != 'contiguous':
    return f'it needs rows of one document each, which layout={inputs.layout!r} does not guarantee'
  left, right = mask_band(inputs.mask, T, S) or (-1, -1)
  if left is None and right is None:
    return None
  if right != 0 or left is not None and left < 0:
    return 'it supports masks that are full, or causal with or without a window to the left'
  if T != S:
    return f'its causal mask needs as many keys as queries, not {S} keys and {T} queries'
  return None


def group_queries(q: Float[Array, 'B T H *C'], K: int) -> Float[Array, 'B K G T *C']:
  """Groups query heads by the key head that they read, and moves them before the tokens."""
  B, T, H, *rest = q.shape
  return jnp.moveaxis(q.reshape(B, T, K, H // K, *rest), 1, 3)


def ungroup_queries(q: Float[Array, 'B K G T *C']) -> Float[Array, 'B T H *C']:
  """Undoes `group_queries`."""
  B, K, G, T, *rest = q.shape
  return jnp.moveaxis(q, 3, 1).reshape(B, T, K * G, *rest)


class Kernel(abc.ABC):
  """Exact attention under one signature; subclasses are frozen dataclasses.

  `dense` is the specification: every other kernel must equal it, forward and backward.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    platforms: the JAX platforms on which it runs; () means all.
    names_residuals: whether `attend` gives its output, and what else its backward pass needs, the
      `CHECKPOINT_NAME`; otherwise the output alone gets it.
    supports_trees: whether it computes attention with a `lineage`.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  platforms: ClassVar[tuple[str, ...]] = ()
  names_residuals: ClassVar[bool] = False
  supports_trees: ClassVar[bool] = False

  def __call__(
    self, q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], v: Float[Array, 'B S K C2'], **inputs
  ) -> Float[Array, 'B T H C2']:
    """Attention; the keywords are the fields of `AttentionInputs`.

    Raises:
      ValueError: if this kernel does not support the inputs or the platform, with the reason.
    """
    return self.attend_or_raise(q, k, v, AttentionInputs(**inputs))[0]

  def with_log_sum_exp(self, q, k, v, **inputs) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T']]:
    """The output and log Σ exp(logits) over each query's visible keys and sink; -inf without visible keys.

    Chosen rows of weights are exp(logits - log-sum-exp), so that the others need not be stored.

    Raises:
      ValueError: as `__call__`, and for a normalizer or kernel without a log-sum-exp.
    """
    inputs = AttentionInputs(**inputs)
    if inputs.normalizer != 'softmax' or inputs.row_normalizer is not None:
      name = inputs.normalizer if inputs.row_normalizer is None else inputs.row_normalizer
      raise ValueError(f'normalizer={name!r} has no log-sum-exp; use softmax')
    out, log_sum_exp = self.attend_or_raise(q, k, v, inputs)
    if log_sum_exp is None:
      raise ValueError(f'kernel={type(self).__name__.lower()!r} returns no log-sum-exp; use dense or chunked')
    return out, log_sum_exp

  @staticmethod
  def weights(
    q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], log_sum_exp: Float[Array, 'B H T'], **inputs
  ) -> Float[Array, 'B H T S']:
    """The weights of chosen queries from the log-sum-exp of `with_log_sum_exp`: exp(logits - log-sum-exp)."""
    logits = Kernel.attention_logits(q, k, **inputs)
    return jnp.where(logits == -jnp.inf, 0, jnp.exp(logits - log_sum_exp[..., None]))

  @staticmethod
  def attention_weights(
    q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], **inputs
  ) -> Float[Array, 'B H T S']:
    """The attention weights before dropout, computed by the dense formula, which every kernel equals."""
    B, T, H, _ = q.shape
    weights, _ = AttentionInputs(**inputs).weights(group_queries(q, k.shape[2]), k.swapaxes(1, 2))
    return weights.reshape(B, H, T, -1)

  @staticmethod
  def attention_logits(
    q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], **inputs
  ) -> Float[Array, 'B H T S']:
    """What the normalizer makes the weights of; -inf for a key that is not visible."""
    inputs = AttentionInputs(**inputs)
    B, T, H, _ = q.shape
    q, k = group_queries(q, k.shape[2]), k.swapaxes(1, 2)
    logits = inputs.logits(q, k, inputs.q_locations, inputs.k_locations).reshape(B, H, T, -1)
    return jnp.where(inputs.visibility_mask()[:, None], logits, -jnp.inf)

  def attend_or_raise(self, q, k, v, inputs: AttentionInputs):
    """`attend`, or a ValueError with the reason why this kernel cannot be used."""

    def attend(q, k, v, of_tokens):
      of_all = inputs.replace(**of_tokens)
      reason = self.unavailable_reason(mesh.current_platform()) or self.unsupported_reason(q, k, v, of_all)
      require(
        not reason,
        f'kernel={type(self).__name__.lower()!r} cannot be used: {reason}; '
        '--config.model.kernel=auto chooses another one',
      )
      return self.attend_under_name(q, k, v, of_all)

    of_tokens = {name: getattr(inputs, name) for name in OF_TOKENS}
    return exchange_tokens_for_heads(attend, q, k, v, of_tokens)

  def attend_under_name(self, q, k, v, inputs: AttentionInputs):
    """`attend`, whose output has the `CHECKPOINT_NAME`."""
    out, log_sum_exp = self.attend(q, k, v, inputs)
    return out if self.names_residuals else checkpoint_name(out, CHECKPOINT_NAME), log_sum_exp

  def unavailable_reason(self, platform: str) -> str | None:
    """Why this kernel is unavailable on a platform or without a package; None if it is available."""
    if self.platforms and platform not in self.platforms:
      return f'it runs on {" and ".join(self.platforms)}, not on {platform}'
    return None

  def unsupported_reason(self, q: Array, k: Array, v: Array, inputs: AttentionInputs) -> str | None:
    """Why this kernel does not support inputs of these shapes, dtypes and static fields; None if it does."""
    return None

  def unpreferred_reason(
    self, q: Array, k: Array, v: Array, inputs: AttentionInputs, platform: str
  ) -> str | None:
    """Why 'auto' should prefer another kernel although this one supports the inputs; else None."""
    return None

  @abc.abstractmethod
  def attend(
    self,
    q: Float[Array, 'B T H C'],
    k: Float[Array, 'B S K C'],
    v: Float[Array, 'B S K C2'],
    inputs: AttentionInputs,
  ) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T'] | None]:
    """The output, and the log-sum-exp, or None from a kernel that does not compute it."""
