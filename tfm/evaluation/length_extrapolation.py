"""Length extrapolation: the loss of a decoder in rows of other lengths than in training.

Two protocols, over the same targets at every length (`windows`):

  nonoverlapping   consecutive rows of the length; the first targets of each row have almost no context,
                   which weighs more in shorter rows ("the early token curse");
  sliding          only the last `stride` targets of each row count, so that all have length - stride tokens
                   of context

(Press et al. 2022, ALiBi, §2 and appendix B). The loss by position in the row separates the gain of targets
with more context from the effect on the others (Kazemnejad et al. 2023, NoPE, by length).
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

from tfm.data import pipeline
from tfm.data.row_share import process_share
from tfm.data.tokens import Tokens
from tfm.decoding.loop import list_position_limits
from tfm.errors import suggest
from tfm.evaluation.evaluate_split import sum_batches
from tfm.evaluation.sliding_windows import Targets, Windows
from tfm.layers import chunked_cross_entropy, cross_entropy
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.shapes import Array, Float, PyTree


# Protocol → (length, stride of the sliding window) → number of counted targets per row.
PROTOCOLS = {'nonoverlapping': lambda length, stride: length, 'sliding': lambda length, stride: stride}

# Bins of positions per doubling.
BINS = 4

# Tokens per chunk of the loss.
CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Bin:
  """The targets at positions first … last of their rows: their mean loss in nats, and their number.

  The position of a target is the number of earlier inputs in its row, as in `Context.positions`.
  """

  first: int
  last: int
  loss: float
  tokens: int


@dataclasses.dataclass(frozen=True)
class LengthRecord:
  """The result at one length.

  Attributes:
    length: of the rows.
    protocol, stride: the last `stride` targets of a row count.
    tokens: number of targets; each counts once.
    loss: in nats per token.
    perplexity: exp(loss).
    bits_per_byte: total loss in bits / bytes of the targets (the end of a document costs bits and has no
      bytes).
    positions: the loss by position.
    impossible: why the length cannot be evaluated, in one sentence; '' if it can. Otherwise the fields
      above are None and empty.
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


def measure_extrapolation(  # more than six parameters: a model, a split and the options of one evaluation
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
) -> list[LengthRecord]:
  """A record for each protocol and length, in the order of the arguments.

  Lengths beyond the model's maximum position are reported as `impossible`, not read with clipped positions.
  Under `sharding.context(mesh, rules)` rows are sharded as a batch in training. One function is compiled per
  model and length, whatever the parameters.

  Args:
    tokens: of a split.
    token_bytes: [V], the UTF-8 bytes that each token stands for.
    sharding: of a batch.
    protocols: of `PROTOCOLS`.
    stride: of the sliding window; default: half the shortest length.
    targets: maximum number of targets, spread evenly over the split as in `Targets`; 0: all.
    batch_tokens: of a batch; the rows are rounded up to a multiple of the devices.
    chunk: tokens per chunk of the loss; 0: the whole batch at once.
    threads: for prefetching rows.

  Raises:
    ValueError: for a model that is no decoder or has prefix masks, an unknown protocol, as `Targets`, or
      for a stride outside 1 … the shortest length.
  """
  validate_model(model, protocols)
  selected = Targets(tokens, lengths, targets)
  stride = max(1, min(lengths) // 2) if stride is None else stride
  size = selected.bytes(token_bytes)
  records = []
  for protocol in protocols:
    for length in lengths:
      rows = Windows(selected, length, PROTOCOLS[protocol](length, stride))
      record = functools.partial(LengthRecord, length, protocol, rows.stride)
      reason = explain_impossible(model, length)
      if reason:
        records.append(record(impossible=reason))
        continue
      sums = sum_rows(
        lambda params, batch: sum_by_position(model, params, batch, chunk),
        params,
        rows,
        sharding,
        batch_tokens,
        threads,
      )
      records.append(record(**summarize_sums(sums, size, length)))
  return records


def validate_model(model: nn.Module, protocols: Sequence[str]) -> None:
  """Raises ValueError for a model that is no causal language model, and for unknown protocols."""
  if hasattr(model, 'encode') or not isinstance(model, Decoder):
    raise ValueError(
      f'{type(model).__name__} cannot be evaluated at several lengths, which requires a causal '
      'language model; use '
      'a decoder'
    )
  if 'prefix' in model.required_fields:
    raise ValueError(
      "a mask of the model reads prefixes, which a running text lacks; use a decoder with mask='causal'"
    )
  for protocol in protocols:
    if protocol not in PROTOCOLS:
      raise ValueError(f'protocol={protocol!r} is unknown; {suggest(protocol, PROTOCOLS)}')


def explain_impossible(model: Decoder, length: int) -> str:
  """Why the model cannot read rows of a length; '' if it can."""
  for name, limit in list_position_limits(model.positions):
    if length > limit:
      return f'impossible: {name} has {limit} positions, and rows have {length} tokens'
  return ''


def sum_rows(
  step: Callable,
  params: PyTree,
  rows: Windows,
  sharding: jax.sharding.Sharding,
  batch_tokens: int,
  threads: int,
) -> dict[str, np.ndarray]:
  """The sum of `step(params, batch)` over all rows."""
  devices = sharding.num_devices
  count = min(max(1, batch_tokens // rows.length), len(rows))
  count = -(-count // devices) * devices
  share = process_share(sharding, count)
  batches = pipeline.evaluation_batches(rows, count, share, threads)
  with contextlib.closing(batches):
    return sum_batches(params, step, batches, sharding, share)


@functools.partial(jax.jit, static_argnums=(0, 3))
def sum_by_position(
  model: Decoder, params: PyTree, batch: Mapping[str, Array], chunk: int
) -> dict[str, Float[Array, 'T']]:
  """The losses of the `counted` targets of rows (`Windows`) and their numbers, summed at each position.

  A pure function; `vmap` over `params` evaluates several models at once.

  Args:
    chunk: tokens per chunk of the loss; 0: all at once.

  Returns:
    `loss` in nats and `tokens`, at each position.
  """
  context = Context(batch['positions'], batch['segments'], layout='contiguous')
  features, _ = model.apply({'params': params}, batch['inputs'], context, method='features')
  head, counted = model.head(params), batch['counted'].astype(jnp.float32)

  def sum_chunk(piece):
    features, targets, counted = piece
    loss, _ = cross_entropy.token_cross_entropy(
      model.apply({'params': head}, features, method='logits'), targets
    )
    return (loss * counted).sum(0)

  pieces = chunked_cross_entropy.chunk_count(*counted.shape, chunk)
  rows = tuple(
    chunked_cross_entropy.split_into_chunks(x, pieces) for x in (features, batch['targets'], counted)
  )
  return dict(loss=jax.lax.map(sum_chunk, rows).reshape(-1), tokens=counted.sum(0))


def summarize_sums(sums: Mapping[str, np.ndarray], size: int, length: int) -> dict[str, Any]:
  """The fields of a record from the sums by position and the bytes of all targets."""
  total, tokens = float(sums['loss'].sum()), int(sums['tokens'].sum())
  if not math.isfinite(total):
    return dict(impossible=f'impossible: in rows of {length} tokens the loss is {total}')
  loss = total / tokens
  return dict(
    tokens=tokens,
    loss=loss,
    perplexity=math.exp(min(loss, 700)),
    bits_per_byte=total / math.log(2) / max(size, 1),
    positions=bin_positions(sums['loss'], sums['tokens']),
  )


def bin_positions(loss: Float[np.ndarray, 'T'], tokens: Float[np.ndarray, 'T']) -> tuple[Bin, ...]:
  """Bins of positions from sums at each position, `BINS` per doubling from 1 on, without empty bins.

  Bins are equal at every length, except for the last bin of a length that is no power of two.
  """
  T = len(tokens)
  edges = [0, *sorted({int(2 ** (i / BINS)) for i in range(BINS * T.bit_length() + 1)})]
  bins = []
  for first, after in zip(edges, edges[1:]):
    positions = slice(first, min(after, T))
    if count := int(tokens[positions].sum()):
      bins.append(Bin(first, positions.stop - 1, float(loss[positions].sum()) / count, count))
  return tuple(bins)
