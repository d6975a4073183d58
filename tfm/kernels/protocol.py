"""The kernel slot: how attention is computed; never what."""

import abc
import functools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.random import threefry2x32_p

from tfm.layers.dot_product import scaled_dot
from tfm.layers.segments import same_document
from tfm.parallel import mesh
from tfm.shapes import Array, Bool, Float, Int


# Why kernels of a maker's library are not compiled for a GPU that is not here.
NO_GPU_ATTACHED = 'it asks the GPU what it is capable of, and none is attached'


@struct.dataclass
class AttentionInputs:
  """What is asked of a kernel besides q, k and v.

    logits  = cap(score(q, k) + bias(q, k, q_positions, k_positions)),  cap(x) = soft_cap · tanh(x / soft_cap)
    weights = softmax over the keys that are seen, with exp(sink of the head) added to the denominator
              or σ(logits + offset), each key for itself

  Head h of H reads key head h // (H/K). A query sees the keys of its own segment that the mask lets
  through; segment 0 is padding, seen by nobody. A query that sees no key gets zeros.

  Attributes:
    score: `(q [B K G T C], k [B K S C]) → logits [B K G T S]` in float32, and
    bias: `(q, k, q_positions, k_positions) → logits [B K G T S]` or what broadcasts to it, or None: both
      `Partial`s whose leaves are learned parameters.
    mask: predicate on positions; layout: what is promised of them (`tfm.masks.protocol.LAYOUTS`).
    k_prefix: the prefix length of each key's document, for masks that ask.
    sinks: a learned logit a head, or None.
    normalizer: 'softmax' or 'sigmoid', with `offset`.
    soft_cap: 0 for none (Gemma 2: 50).
    dropout: rate at which weights are dropped when there is a `dropout_key`.
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
  mask: Callable = struct.field(pytree_node=False, kw_only=True)
  layout: str = struct.field(pytree_node=False, default='arbitrary')
  normalizer: str = struct.field(pytree_node=False, default='softmax')
  offset: float = struct.field(pytree_node=False, default=0.0)
  soft_cap: float = struct.field(pytree_node=False, default=0.0)
  dropout: float = struct.field(pytree_node=False, default=0.0)

  @property
  def uses_dropout(self) -> bool:
    """Whether weights are dropped at all."""
    return self.dropout > 0 and self.dropout_key is not None

  @property
  def scale(self) -> float | None:
    """The factor, where the score is nothing but factor · q·k; else None."""
    plain = getattr(self.score, 'func', None)  # of the Partial, which has no leaves then
    return plain.keywords['scale'] if getattr(plain, 'func', None) is scaled_dot else None

  def unsupported_feature_reason(self, *supported: str) -> str | None:
    """What is asked of `SPECIAL` besides what a kernel is `able` to do, in its words; None if nothing is."""
    special = (OPTIONAL_FEATURES[name] for name in OPTIONAL_FEATURES if name not in supported)
    return next((reason for is_requested, reason in special if is_requested(self)), None)

  def logits(
    self,
    q: Float[Array, 'B K G T C'],
    k: Float[Array, 'B K S C'],
    q_positions: Int[Array, 'B T'],
    k_positions: Int[Array, 'B S'],
  ) -> Float[Array, 'B K G T S']:
    """The capped logits of some queries and keys, in float32; nothing is masked yet."""
    logits = self.score(q, k)
    if self.bias is not None:
      logits = logits + self.bias(q, k, q_positions, k_positions)
    return self.soft_cap * jnp.tanh(logits / self.soft_cap) if self.soft_cap else logits

  def visibility_mask(self) -> Bool[Array, 'B T S']:
    """Which query sees which key."""
    prefix = None if self.k_prefix is None else self.k_prefix[:, None, :]
    seen = self.mask.bind_prefix(prefix)(self.q_positions[:, :, None], self.k_positions[:, None, :])
    return seen & same_document(self.q_segments, self.k_segments)

  def weights(
    self, q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C']
  ) -> tuple[Float[Array, 'B K G T S'], Float[Array, 'B H T'] | None]:
    """The weights before dropout, all at once, and the log of their denominator where there is one."""
    logits = self.logits(q, k, self.q_positions, self.k_positions)
    return NORMALIZERS[self.normalizer](logits, self.visibility_mask()[:, None, None], self)

  def dropout_keep_mask(
    self, shape: tuple[int, int, int], q_index: Int[Array, 'T'], k_index: Int[Array, 'S'], queries: int
  ) -> Bool[Array, 'B K G T S']:
    """Which weights of a `(B, K, G)` batch survive dropout, for some of the `queries` that there are in all.

    Each is drawn from the key and its own place (row, head, query, key): blocks, and all kernels, agree.
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


def softmax(
  logits: Float[Array, 'B K G T S'], seen: Bool[Array, 'B 1 1 T S'], inputs: AttentionInputs
) -> tuple[Float[Array, 'B K G T S'], Float[Array, 'B H T']]:
  """Weights that sum to one over the keys seen and the sink; and the log of their denominator."""
  B, K, G, T, S = logits.shape
  # Finite where nothing is seen: the gradient of such a row is zero and not NaN.
  logits = jnp.where(seen, logits, -1e30)
  if inputs.sinks is not None:
    sinks = jnp.broadcast_to(inputs.sinks.astype(jnp.float32).reshape(1, K, G, 1, 1), (B, K, G, T, 1))
    logits = jnp.concatenate([logits, sinks], -1)
  weights = jax.nn.softmax(logits, axis=-1)[..., :S]
  weights = jnp.where(seen.any(-1, keepdims=True), weights, 0)
  log_sum_exp = jax.nn.logsumexp(jnp.where(logits == -1e30, -jnp.inf, logits), axis=-1)
  return weights, log_sum_exp.reshape(B, K * G, T)


def sigmoid(
  logits: Float[Array, 'B K G T S'], seen: Bool[Array, 'B 1 1 T S'], inputs: AttentionInputs
) -> tuple[Float[Array, 'B K G T S'], None]:
  """σ(logits + offset) for each key seen (Ramapuram et al. 2024, "Sigmoid self-attention", eq. 3)."""
  return jnp.where(seen, jax.nn.sigmoid(logits + inputs.offset), 0), None


NORMALIZERS = {'softmax': softmax, 'sigmoid': sigmoid}

# What not every kernel can: whether it is asked, and the words of one that cannot.
OPTIONAL_FEATURES = {
  'score': (lambda inputs: inputs.scale is None, 'it has no other score than the scaled dot product'),
  'bias': (lambda inputs: inputs.bias is not None, 'it takes no bias on the logits'),
  'sinks': (lambda inputs: inputs.sinks is not None, 'it has no sinks in the denominator'),
  'sigmoid': (lambda inputs: inputs.normalizer != 'softmax', 'it normalizes by softmax only'),
  'soft_cap': (lambda inputs: inputs.soft_cap > 0, 'it does not cap logits'),
  'dropout': (lambda inputs: inputs.uses_dropout, 'it does not draw the dropout that all kernels agree on'),
  'prefix': (
    lambda inputs: inputs.mask.required_fields,
    'it must know the mask before the data, which a prefix is',
  ),
}


@functools.lru_cache(maxsize=64)
def mask_band(mask: Callable, T: int, S: int) -> tuple[int | None, int | None] | None:
  """(left, right), if T queries see, by index, just those of S keys from q - left to q + right; else None.

  None for a side: it has no end. A mask that is not relative may be a band, and is not known to be.
  """
  if not mask.relative:
    return None
  distance = np.arange(1 - S, T)
  seen = np.flatnonzero(mask(np.maximum(distance, 0), np.maximum(-distance, 0)))
  if not len(seen) or len(seen) <= seen[-1] - seen[0]:
    return None
  return (
    None if seen[-1] == len(distance) - 1 else int(distance[seen[-1]]),
    None if seen[0] == 0 else -int(distance[seen[0]]),
  )


def unsupported_mask_reason(inputs: AttentionInputs, T: int, S: int) -> str | None:
  """Why the mask is beyond a kernel for the usual: rows of one document each, whose queries are the keys' own
  tokens, under a mask that is causal, causal with a window to the left, or full; None if it is not."""
  if inputs.layout != 'contiguous':
    return f'it takes rows of one document each, and layout={inputs.layout!r} does not promise that'
  left, right = mask_band(inputs.mask, T, S) or (-1, -1)
  if left is None and right is None:
    return None
  if right != 0 or left is not None and left < 0:
    return 'its masks are full, or causal with or without a window to the left'
  if T != S:
    return f'its causal mask is for as many keys as queries, not {S} and {T}'
  return None


def group_queries(q: Float[Array, 'B T H C'], K: int) -> Float[Array, 'B K G T C']:
  """Queries by the key head that they read."""
  B, T, H, C = q.shape
  return q.reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4)


class Kernel(abc.ABC):
  """Exact attention under one signature; subclasses are frozen dataclasses.

  `dense` is the specification: every other kernel must equal it, forward and backward.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
    platforms: where it runs, as JAX names them; (): anywhere.
  """

  examples: ClassVar[tuple[str, ...]] = ()
  platforms: ClassVar[tuple[str, ...]] = ()

  def __call__(
    self, q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], v: Float[Array, 'B S K C2'], **inputs
  ) -> Float[Array, 'B T H C2']:
    """Attention as `Asked`, whose fields are the keywords, describes it.

    Raises:
      ValueError: if this kernel cannot serve, with the reason.
    """
    return self.serve(q, k, v, AttentionInputs(**inputs))[0]

  def with_log_sum_exp(self, q, k, v, **inputs) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T']]:
    """The same, and log Σ exp(logits) over what each query sees, sinks included; -inf where it sees nothing.

    With it a chosen row of weights is exp(logits - log-sum-exp), and the others need not be stored.

    Raises:
      ValueError: also for a normalizer that has no sum.
    """
    inputs = AttentionInputs(**inputs)
    if inputs.normalizer != 'softmax':
      raise ValueError(f'normalizer={inputs.normalizer!r} has no log-sum-exp; softmax has one')
    out, log_sum_exp = self.serve(q, k, v, inputs)
    if log_sum_exp is None:
      raise ValueError(f'{type(self).__name__} does not tell the log-sum-exp; dense and chunked do')
    return out, log_sum_exp

  @staticmethod
  def weights(
    q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], log_sum_exp: Float[Array, 'B H T'], **inputs
  ) -> Float[Array, 'B H T S']:
    """The weights of chosen queries, exp(logits - log-sum-exp) where seen, from what `with_log_sum_exp` told of them."""
    inputs = AttentionInputs(**inputs)
    B, T, H, _ = q.shape
    q, k = group_queries(q, k.shape[2]), k.swapaxes(1, 2)
    logits = inputs.logits(q, k, inputs.q_positions, inputs.k_positions).reshape(B, H, T, -1)
    return jnp.where(inputs.visibility_mask()[:, None], jnp.exp(logits - log_sum_exp[..., None]), 0)

  @staticmethod
  def all_weights(
    q: Float[Array, 'B T H C'], k: Float[Array, 'B S K C'], **inputs
  ) -> Float[Array, 'B H T S']:
    """What the values are weighted by, before dropout: of the specification, whose numbers every kernel has."""
    B, T, H, _ = q.shape
    weights, _ = AttentionInputs(**inputs).weights(group_queries(q, k.shape[2]), k.swapaxes(1, 2))
    return weights.reshape(B, H, T, -1)

  def serve(self, q, k, v, inputs: AttentionInputs):
    """`attend`, after a refusal where there is a reason for one."""
    if reason := self.unavailable_reason(mesh.current_platform()) or self.unsupported_reason(q, k, v, inputs):
      raise ValueError(f'kernel={type(self).__name__.lower()!r} cannot serve: {reason}')
    return self.attend(q, k, v, inputs)

  def unavailable_reason(self, platform: str) -> str | None:
    """Why this kernel is not to be had on a platform, or without a package; None if it is."""
    if self.platforms and platform not in self.platforms:
      return f'it runs on {" and ".join(self.platforms)}, and this is a {platform}'
    return None

  def unsupported_reason(self, q: Array, k: Array, v: Array, inputs: AttentionInputs) -> str | None:
    """Why this kernel cannot serve, told from shapes, types and static fields; None if it can."""
    return None

  def unpreferred_reason(
    self, q: Array, k: Array, v: Array, inputs: AttentionInputs, platform: str
  ) -> str | None:
    """Why 'auto' should rather take another, though this one could serve; None if there is no reason."""
    return None

  @abc.abstractmethod
  def attend(
    self,
    q: Float[Array, 'B T H C'],
    k: Float[Array, 'B S K C'],
    v: Float[Array, 'B S K C2'],
    inputs: AttentionInputs,
  ) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T'] | None]:
    """The output, and the log-sum-exp, or None from a kernel that does not tell it."""
