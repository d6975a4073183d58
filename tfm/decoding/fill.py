"""Tokens for the hidden ones of a text, by an encoder."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.decoding.loop import buckets, padded, reaches
from tfm.mixers.protocol import Context
from tfm.models.encoder import Encoder
from tfm.shapes import Array, Float, Int, PyTree


# Texts read at once.
ROWS = 32


class Filled(NamedTuple):
  """A whole row, and Σ log p of the tokens that were put in."""

  tokens: np.ndarray
  score: float


def fill(
  model: Encoder, params: PyTree, rows: Sequence[np.ndarray], mask: int, best: int = 1, batch: int = ROWS
) -> Iterator[list[Filled]]:
  """Each row `best` times, the likeliest first: the i-th with the i-th likeliest token in every hidden place.

  All places are told at once, each as if the others stayed hidden; a special token is never put in.

  Args:
    rows: token sequences, in each of which `mask` stands somewhere.

  Raises:
    ValueError: for a row without a hidden token, or longer than a positional scheme can tell, more tokens than
      there are, or an encoder that predicts none.
  """
  if not model.hidden:
    raise ValueError('the encoder was not trained to tell hidden tokens; one of masked_lm would do')
  if not 1 <= best < model.vocab:
    raise ValueError(f'{best} tokens for each place are asked for, and there are {model.vocab - 1}')
  for i, row in enumerate(rows):
    if mask not in row:
      raise ValueError(f'text {i + 1} hides no token; write <mask> where one is to be told')
    for name, reach in reaches(model.positions):
      if len(row) > reach:
        raise ValueError(f'text {i + 1} has {len(row)} tokens and {name} has {reach} positions; shorten it')
  return _fill(model, params, rows, mask, best, batch)


def _fill(model, params, rows, mask, best, batch):
  for start in range(0, len(rows), batch):
    part = rows[start : start + batch]
    hidden = [np.flatnonzero(row == mask) for row in part]
    size, length, count = padded(len(part)), buckets(max(map(len, part)), 16), buckets(max(map(len, hidden)))
    tokens, segments = np.zeros((2, size, length), np.int32)
    places = np.zeros((size, count), np.int32)
    for i, (row, at) in enumerate(zip(part, hidden)):
      tokens[i, : len(row)], segments[i, : len(row)], places[i, : len(at)] = row, 1, at
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    scores, found = map(
      np.asarray,
      likeliest(model, params, tokens, Context(positions, segments, layout='contiguous'), places, mask, best),
    )
    for i, (row, at) in enumerate(zip(part, hidden)):
      made = []
      for rank in range(best):
        filled = row.copy()
        filled[at] = found[i, : len(at), rank]
        made.append(Filled(filled, float(scores[i, : len(at), rank].sum())))
      yield made


@functools.partial(jax.jit, static_argnums=(0, 5, 6))
def likeliest(
  model: Encoder,
  params: PyTree,
  tokens: Int[Array, 'B T'],
  context: Context,
  places: Int[Array, 'B P'],
  mask: int,
  best: int,
) -> tuple[Float[Array, 'B P N'], Int[Array, 'B P N']]:
  """log p and number of the `best` likeliest tokens but `mask` at each place."""
  logits = model.apply({'params': params}, tokens, context, None, places)[0]['vocabulary']
  log_p = jax.nn.log_softmax(logits)
  return jax.lax.top_k(log_p.at[..., mask].set(-jnp.inf), best)
