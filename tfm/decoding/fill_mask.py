"""Fills masked tokens of a text with an encoder."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.decoding.loop import list_position_limits, round_up, round_up_rows
from tfm.mixers.protocol import Context
from tfm.models.encoder import Encoder
from tfm.parallel import host_arrays
from tfm.shapes import Array, Float, Int, PyTree


# Texts read at once.
ROWS = 32


class FilledText(NamedTuple):
  """A row with its masks filled, and Σ log p of the new tokens."""

  tokens: np.ndarray
  score: float


def fill_masks(
  model: Encoder, params: PyTree, rows: Sequence[np.ndarray], mask: int, best: int = 1, batch: int = ROWS
) -> Iterator[list[FilledText]]:
  """Yields `best` versions of each row, the most likely first: version i has the i-th most likely token in
  every mask.

  All masks are predicted at once, independently of each other; special tokens are never predicted.

  Args:
    rows: token sequences, each with at least one `mask`.

  Raises:
    ValueError: for a row without a mask or beyond the model's maximum position, `best` above the vocabulary
      size, or an encoder that was not trained on masked tokens.
  """
  if not model.hidden:
    raise ValueError('the encoder was not trained on masked tokens; use one trained with masked_lm')
  if not 1 <= best < model.vocab:
    raise ValueError(
      f'best={best} must lie in 1 … {model.vocab - 1}, the size of the vocabulary without the mask'
    )
  for i, row in enumerate(rows):
    if mask not in row:
      raise ValueError(f'text {i + 1} has no mask; write <mask> for each token to predict')
    for name, limit in list_position_limits(model.positions):
      if len(row) > limit:
        raise ValueError(f'text {i + 1} has {len(row)} tokens and {name} has {limit} positions; shorten it')
  return _iterate_filled(model, params, rows, mask, best, batch)


def _iterate_filled(model, params, rows, mask, best, batch):
  for start in range(0, len(rows), batch):
    part = rows[start : start + batch]
    masked = [np.flatnonzero(row == mask) for row in part]
    size, length, count = (
      round_up_rows(len(part)),
      round_up(max(map(len, part)), 16),
      round_up(max(map(len, masked))),
    )
    tokens, segments = np.zeros((2, size, length), np.int32)
    places = np.zeros((size, count), np.int32)
    for i, (row, at) in enumerate(zip(part, masked)):
      tokens[i, : len(row)], segments[i, : len(row)], places[i, : len(at)] = row, 1, at
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    context = Context(positions, segments, layout='contiguous')
    scores, predictions = host_arrays.fetch(
      predict_masked(model, params, MaskedRows(tokens, context, places), mask, best)
    )
    for i, (row, at) in enumerate(zip(part, masked)):
      versions = []
      for rank in range(best):
        filled = row.copy()
        filled[at] = predictions[i, : len(at), rank]
        versions.append(FilledText(filled, float(scores[i, : len(at), rank].sum())))
      yield versions


class MaskedRows(NamedTuple):
  """Tokens with masks, their context, and the places of the masks."""

  tokens: Int[Array, 'B T']
  context: Context
  places: Int[Array, 'B P']


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def predict_masked(
  model: Encoder, params: PyTree, rows: MaskedRows, mask: int, best: int
) -> tuple[Float[Array, 'B P N'], Int[Array, 'B P N']]:
  """log p and ids of the `best` most likely tokens at each place, without `mask`."""
  logits = model.apply({'params': params}, rows.tokens, rows.context, None, rows.places)[0]['vocabulary']
  log_p = jax.nn.log_softmax(logits)
  return jax.lax.top_k(log_p.at[..., mask].set(-jnp.inf), best)
