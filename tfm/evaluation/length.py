"""Length extrapolation: how well a decoder predicts in rows of other lengths than it was trained on.

Two protocols, over the same targets at every length (`windows`):

  nonoverlapping   rows of the length, one after another; the first targets of each have next to no context, the more
                   of them the shorter the rows are ("the early token curse");
  sliding          only the last `stride` targets of each row count, so that all have length - stride tokens of context

(Press et al. 2022, ALiBi, §2 and appendix B), and the loss by position in the row, which tells what a longer row
brings to the targets that have more context and what it does to the others (Kazemnejad et al. 2023, NoPE, by length).
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.data import device, pipeline
from tfm.data.tokens import Tokens
from tfm.decoding.loop import list_position_limits
from tfm.errors import suggest
from tfm.evaluation.measure import totals
from tfm.evaluation.windows import Targets, Windows
from tfm.layers import chunked_cross_entropy, cross_entropy
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.shapes import Array, Float, PyTree


# (length, stride of the sliding window) → targets that count of each row.
PROTOCOLS = {'nonoverlapping': lambda length, stride: length, 'sliding': lambda length, stride: stride}

# Bins of positions in each doubling.
BINS = 4

# Tokens whose logits exist at once.
CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Bin:
  """The targets at positions first … last of their rows: their mean loss in nats, and how many there are.

  The position of a target is how many inputs of its row stand before its own, as `Context.positions` counts.
  """

  first: int
  last: int
  loss: float
  tokens: int


@dataclasses.dataclass(frozen=True)
class Record:
  """What was measured at one length.

  Attributes:
    length: of the rows; protocol, stride: which targets of a row count, the last `stride`.
    tokens: targets, each of which counts once.
    loss: in nats per token; perplexity, its exponential; bits_per_byte: the whole loss in bits over the bytes of the
      targets (the end of a document costs bits and has no bytes).
    positions: the loss by position, where there are targets.
    impossible: why nothing could be measured, in one sentence; '' where something was. The fields before it are then
      None and empty.
  """

  length: int
  protocol: str
  stride: int
  tokens: int | None = None
  loss: float | None = None
  perplexity: float | None = None
  bits_per_byte: float | None = None
  positions: tuple[Bin, ...] = ()
  impossible: str = ''


def extrapolation(
  model: Decoder,
  params: PyTree,
  tokens: Tokens,
  lengths: Sequence[int],
  *,
  token_bytes: np.ndarray,
  sharding: jax.sharding.Sharding,
  protocols: Sequence[str] = ('nonoverlapping',),
  stride: int | None = None,
  targets: int = 0,
  batch_tokens: int = 8192,
  chunk: int = CHUNK,
  threads: int = 2,
) -> list[Record]:
  """A record for each protocol and length, in the order given.

  A length that a positional scheme cannot tell is not read with clipped positions: its record says that it is
  `impossible`. Under `sharding.context(mesh, rules)` rows are cut as a batch in training. One function is compiled for
  each model and length, whatever the parameters.

  Args:
    tokens: of a split.
    token_bytes: [V], the UTF-8 bytes that each token stands for.
    sharding: of a batch.
    protocols: of `PROTOCOLS`.
    stride: of the sliding window; half the shortest length unless given.
    targets: at most so many, spread evenly over the split as `Targets` tells; 0: all.
    batch_tokens: of a batch, in rows rounded up to one for each device.
    chunk: tokens whose logits exist at once; 0: all of a batch.
    threads: that read rows ahead.

  Raises:
    ValueError: for a model that is no decoder or wants to know of prefixes, an unknown protocol, what `Targets` refuses,
      or a stride outside 1 … the shortest length.
  """
  validate_inputs(model, protocols)
  found = Targets(tokens, lengths, targets)
  stride = max(1, min(lengths) // 2) if stride is None else stride
  size = found.bytes(token_bytes)
  records = []
  for protocol in protocols:
    for length in lengths:
      rows = Windows(found, length, PROTOCOLS[protocol](length, stride))
      record = functools.partial(Record, length, protocol, rows.stride)
      reason = impossible(model, length)
      if reason:
        records.append(record(impossible=reason))
        continue
      sums = summed(
        lambda params, batch: position_sums(model, params, batch, chunk),
        params,
        rows,
        sharding,
        batch_tokens,
        threads,
      )
      records.append(record(**summary(sums, size, length)))
  return records


def validate_inputs(model: nn.Module, protocols: Sequence[str]) -> None:
  """Refuses what is no causal language model, and unknown protocols."""
  if hasattr(model, 'encode') or not isinstance(model, Decoder):
    raise ValueError(
      f'{type(model).__name__} does not go on with a running text, which lengths are compared on; a decoder '
      'does'
    )
  if 'prefix' in model.reads:
    raise ValueError(
      "a mask of the model reads prefixes, which a running text has not; a decoder with mask='causal' would do"
    )
  for protocol in protocols:
    if protocol not in PROTOCOLS:
      raise ValueError(f'protocol={protocol!r} is not there; {suggest(protocol, PROTOCOLS)}')


def impossible(model: Decoder, length: int) -> str:
  """Why the model cannot read rows of a length; '' if it can."""
  for name, reach in list_position_limits(model.positions):
    if length > reach:
      return f'impossible: {name} has {reach} positions, and rows of {length} tokens need as many'
  return ''


def summed(
  step: Callable,
  params: PyTree,
  rows: Windows,
  sharding: jax.sharding.Sharding,
  batch_tokens: int,
  threads: int,
) -> dict[str, np.ndarray]:
  """What `step(params, batch)` gives of all rows, added up."""
  devices = sharding.num_devices
  count = min(max(1, batch_tokens // rows.length), len(rows))
  count = -(-count // devices) * devices
  batches = pipeline.evaluation_batches(rows, count, *device.process_rows(sharding, count), threads=threads)
  with contextlib.closing(batches):
    return totals(params, step, batches, sharding)


@functools.partial(jax.jit, static_argnums=(0, 3))
def position_sums(
  model: Decoder, params: PyTree, batch: Mapping[str, Array], chunk: int
) -> dict[str, Float[Array, 'T']]:
  """The losses of the `counted` targets of some rows (`Windows`) summed at each position, and their numbers.

  A pure function; under `vmap` over `params` it is that of as many models at once.

  Args:
    chunk: tokens whose logits exist at once; 0: all.

  Returns:
    `loss` in nats and `tokens`, of each position.
  """
  context = Context(batch['positions'], batch['segments'], layout='contiguous')
  features, _ = model.apply({'params': params}, batch['inputs'], context, method='features')
  head, counted = model.head(params), batch['counted'].astype(jnp.float32)

  def of_piece(piece):
    features, targets, counted = piece
    loss, _ = cross_entropy.each(model.apply({'params': head}, features, method='logits'), targets)
    return (loss * counted).sum(0)

  pieces = chunked_cross_entropy.pieces(*counted.shape, chunk)
  rows = tuple(chunked_cross_entropy.cut(x, pieces) for x in (features, batch['targets'], counted))
  return dict(loss=jax.lax.map(of_piece, rows).reshape(-1), tokens=counted.sum(0))


def summary(sums: Mapping[str, np.ndarray], size: int, length: int) -> dict[str, Any]:
  """The fields of a record at a length, of sums by position and the bytes of all targets."""
  total, tokens = float(sums['loss'].sum()), int(sums['tokens'].sum())
  if not math.isfinite(total):
    return dict(impossible=f'impossible: in rows of {length} tokens the loss is {total}')
  loss = total / tokens
  return dict(
    tokens=tokens,
    loss=loss,
    perplexity=math.exp(min(loss, 700)),
    bits_per_byte=total / math.log(2) / max(size, 1),
    positions=binned(sums['loss'], sums['tokens']),
  )


def binned(loss: Float[np.ndarray, 'T'], tokens: Float[np.ndarray, 'T']) -> tuple[Bin, ...]:
  """Bins of positions from sums at each, `BINS` in each doubling from 1 on; those without targets are left out.

  The same positions are together at every length, but for the last of a row whose length is no power of two.
  """
  T = len(tokens)
  edges = [0, *sorted({int(2 ** (i / BINS)) for i in range(BINS * T.bit_length() + 1)})]
  bins = []
  for first, after in zip(edges, edges[1:]):
    here = slice(first, min(after, T))
    if count := int(tokens[here].sum()):
      bins.append(Bin(first, here.stop - 1, float(loss[here].sum()) / count, count))
  return tuple(bins)
