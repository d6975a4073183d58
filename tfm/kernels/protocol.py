"""The kernel slot: how attention is computed; never what."""

import abc
from collections.abc import Callable
from typing import ClassVar

from tfm.shapes import Array, Float, Int


class Kernel(abc.ABC):
  """Exact attention under one signature; subclasses are frozen dataclasses.

  `dense` is the specification: every other kernel must equal it, forward and backward.

  Attributes:
    examples: specs that the conformance suite tries; a file whose bare name is a spec needs none.
  """

  examples: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def __call__(
      self,
      q: Float[Array, 'B T H C'],
      k: Float[Array, 'B S K C'],
      v: Float[Array, 'B S K C'],
      *,
      score: Callable,
      mask: Callable,
      bias: Callable | None,
      q_positions: Int[Array, 'B T'],
      k_positions: Int[Array, 'B S'],
      q_segments: Int[Array, 'B T'],
      k_segments: Int[Array, 'B S'],
      dropout: float = 0.0,
      dropout_key: Array | None = None,
  ) -> Float[Array, 'B T H C']:
    """softmax(score(q, k) + bias) · v over the keys that mask and segments let through.

    Query heads are grouped over key/value heads: head h reads key head h // (H/K). A query sees a
    key only in its own segment; segment 0 is padding, seen by nobody. A query that sees no key gets
    zeros. `dropout` drops attention weights when a key is given.
    """
