"""Loss slices: where the loss of a language model lies, by kinds of targets.

  repeated, new            whether a target ends an n-gram that its row had before: what can be recalled from
                           the context (Olsson et al. 2022)
  ar_hits, other           whether it does, and training has that n-gram at most 1,250 times: what the context
                           tells, and hardly the parameters (of bigrams: Arora et al. 2023, Zoology, §3.1)
  rare, medium, frequent   by how often the training split has the token: the rarest types that make up a
                           tenth of it, the most frequent that make up half, and those between
  position                 by the number of tokens that the row has before it: 0, 1-3, 4-15, …

All slices are of the loss in nats per token.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tfm.layers import chunked_cross_entropy, cross_entropy
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.objectives.causal_lm import CausalLM
from tfm.shapes import Array, Bool, Float, Int, PyTree, UInt64


REPEATS, RECALL, FREQUENCIES = ('new', 'repeated'), ('other', 'ar_hits'), ('rare', 'medium', 'frequent')
NAMES = REPEATS, RECALL, FREQUENCIES  # of three partitions of the targets; the fourth is by position
# An n-gram that training has more often is no AR hit.
MAX_COUNT = 1250
# The shares of the training tokens that the rarest and that all but the most frequent types have.
RARE, NOT_FREQUENT = 0.1, 0.5
# Positions are in groups of this many times the one before.
RATIO = 4
# Tokens per chunk of the loss.
CHUNK = 1024
LABELS = 'slices'  # the field of a batch: [B T 4], the slices of every target


@dataclasses.dataclass(frozen=True)
class Slice:
  """Some of the targets.

  Attributes:
    name: 'repeated', …, or 'position'; first: the first position, 0 for other names.
    loss: the mean, in nats per token; None without tokens.
    tokens: their number.
  """

  name: str
  first: int
  loss: float | None
  tokens: int


@dataclasses.dataclass(frozen=True)
class Slices:
  """Assigns targets to slices.

  Attributes:
    ngram: tokens of an n-gram, the target included.
    classes: [V], the index of each token in `FREQUENCIES`.
    known: the n-grams that training has often (`frequent_ngrams`).
  """

  ngram: int
  classes: Int[np.ndarray, 'V']
  known: UInt64[np.ndarray, 'N']

  def label(self, batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the batches with the slices of each target, as indices of `summarize`."""
    for batch in batches:
      inputs, targets = batch['inputs'], batch['targets']
      repeated = find_repeats(inputs, targets, batch['segments'], self.ngram)
      known = np.isin(hash_ngrams(_list_grams(inputs, targets, self.ngram)), self.known)
      labels = [repeated, repeated & ~known, self.classes[targets], position_groups(batch['positions'])]
      starts = np.cumsum([0, *map(len, NAMES)])
      yield dict(batch) | {LABELS: (np.stack(labels, axis=-1) + starts).astype(np.int32)}

  def summarize(self, sums: Mapping[str, Float[np.ndarray, 'S']]) -> list[Slice]:
    """The slices from the sums of `sum_by_slice`; groups of positions that no row has are left out."""
    names = [(name, 0) for name in itertools.chain(*NAMES)]
    groups = len(sums['tokens']) - len(names)
    names += [('position', first) for first in (0, *RATIO ** np.arange(groups - 1))]
    found = [
      Slice(name, int(first), float(loss / tokens) if tokens else None, int(tokens))
      for (name, first), loss, tokens in zip(names, sums['loss'], sums['tokens'], strict=True)
    ]
    return [part for part in found if part.tokens or part.name != 'position']


def find_repeats(
  inputs: Int[np.ndarray, 'B T'], targets: Int[np.ndarray, 'B T'], segments: Int[np.ndarray, 'B T'], n: int
) -> Bool[np.ndarray, 'B T']:
  """Whether target t is the last token of an n-gram that its row and document had before.

  The n-gram is inputs t - n + 2 … t and the target; the first n - 2 targets of a document end none.
  """
  B, T = inputs.shape
  rows, after = np.indices((B, T)), max(T - n + 2, 0)
  grams = [rows[0], segments, *_list_grams(inputs, targets, n)]
  whole = np.zeros((B, T), bool)
  whole[:, n - 2 :] = (segments[:, n - 2 :] == segments[:, :after]) & (segments[:, n - 2 :] > 0)
  _, first, which = np.unique(
    np.stack([gram[whole] for gram in grams], axis=-1), axis=0, return_index=True, return_inverse=True
  )
  repeated = np.zeros((B, T), bool)
  repeated[whole] = first[which.reshape(-1)] != np.arange(len(which))
  return repeated


def _list_grams(
  inputs: Int[np.ndarray, 'B T'], targets: Int[np.ndarray, 'B T'], n: int
) -> list[Int[np.ndarray, 'B T']]:
  """The first, second, … tokens of the n-grams that end with each target."""
  return [*(_shift(inputs, shift) for shift in range(n - 2, -1, -1)), targets]


def _shift(x: Int[np.ndarray, 'B T'], by: int) -> Int[np.ndarray, 'B T']:
  """x[t - by] at t, and 0 before the beginning."""
  return np.pad(x, ((0, 0), (by, 0)))[:, : x.shape[1]]


def frequent_ngrams(ids: Int[np.ndarray, 'N'], n: int, most: int) -> UInt64[np.ndarray, 'M']:
  """The n-grams, hashed, that a text has more than `most` times."""
  length = max(len(ids) - n + 1, 0)
  found, counts = np.unique(hash_ngrams([ids[i : i + length] for i in range(n)]), return_counts=True)
  return found[counts > most]


def hash_ngrams(grams: Sequence[Int[np.ndarray, '*dims']]) -> UInt64[np.ndarray, '*dims']:
  """64 bits for each n-gram, given as its first, second, … tokens: equal for two with probability 2^-64."""
  found = np.zeros(np.shape(grams[0]), np.uint64)
  for tokens in grams:  # products and sums are modulo 2^64
    found = (found ^ tokens.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(32)
  return found


def frequency_classes(counts: Int[np.ndarray, 'V']) -> Int[np.ndarray, 'V']:
  """The index of each token in `FREQUENCIES`: where, from the rarest on, its last occurrence lies."""
  order = np.argsort(counts, kind='stable')
  share = np.cumsum(counts[order]) / max(counts.sum(), 1)
  classes = np.empty(len(counts), np.int32)
  classes[order] = np.searchsorted((RARE, NOT_FREQUENT), share, side='left')
  return classes


def position_groups(positions: Int[np.ndarray, 'B T']) -> Int[np.ndarray, 'B T']:
  """0 for position 0, and 1 + ⌊log₄ position⌋."""
  edges = RATIO ** np.arange(16)
  return np.searchsorted(edges, positions, side='right')


def count_slices(length: int) -> int:
  """How many slices rows of a length may have."""
  return sum(map(len, NAMES)) + int(position_groups(np.array(length - 1))) + 1


@functools.partial(jax.jit, static_argnums=(0, 1))
def sum_by_slice(
  model: Decoder, objective: CausalLM, params: PyTree, batch: Mapping[str, Array]
) -> dict[str, Float[Array, 'S']]:
  """The losses of the targets of a labelled batch and their numbers, summed in each slice.

  Returns:
    `loss` in nats and `tokens`, of each slice.
  """
  prefix, weights = objective.prefix_and_weights(batch, None)
  context = Context(batch['positions'], batch['segments'], prefix, layout=objective.layout)
  features, _ = objective.row_features(model, params, batch['inputs'], context, None)
  head = model.head(params)

  def sum_chunk(piece: Any) -> Float[Array, '2 S']:
    features, targets, labels, weights = piece
    loss, _ = cross_entropy.token_cross_entropy(
      model.apply({'params': head}, features, method='logits'), targets
    )
    values = jnp.stack([loss * weights, weights])[..., None]
    return jnp.zeros((2, count_slices(batch['inputs'].shape[1]))).at[:, labels].add(values)

  pieces = chunked_cross_entropy.chunk_count(*weights.shape, CHUNK)
  parts = (features, batch['targets'], batch[LABELS], weights)
  rows = tuple(chunked_cross_entropy.split_into_chunks(x, pieces) for x in parts)
  loss, tokens = jax.lax.map(sum_chunk, rows).sum(0)
  return dict(loss=loss, tokens=tokens)
