"""Attention maps: the attention weight of every key for every query, by layer and head."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.mixers.protocol import ATTENTION, Mixer
from tfm.models.decoder import Decoder
from tfm.models.stack import Stack
from tfm.parallel import host_arrays
from tfm.shapes import Float, PyTree


# Replacements of invisible characters in labels.
VISIBLE = {' ': '␣', '\n': '↵', '\t': '⇥'}


@dataclasses.dataclass(frozen=True)
class AttentionKind:
  """One kind of attention in a model.

  Attributes:
    name: 'encoder' or 'decoder' for self-attention, 'cross' for cross-attention.
    queries, keys: the tokens of each, 'source' or 'text'.
    stack: of the blocks with this attention.
    path: the module names from the model to the stack.
    branch: of a block, 'mixer' or 'cross'.
  """

  name: str
  queries: str
  keys: str
  stack: Stack
  path: tuple[str, ...]
  branch: str

  @property
  def mixers(self) -> list[Mixer]:
    """The mixer of each layer."""
    pattern = [getattr(block(), self.branch)() for block in self.stack.pattern]
    return [pattern[i % len(pattern)] for i in range(self.stack.layers)]

  def weights(self, sown: PyTree) -> list[Float[np.ndarray, 'B H T S'] | None]:
    """The weights of each layer from the collection that a model sowed; None for a mixer without weights."""
    for name in self.path:
      sown = sown.get(name, {})
    blocks = (block or {} for block in self.stack.by_layer(sown))
    return [block.get(self.branch, {}).get('weights') for block in blocks]


def list_kinds(model: nn.Module) -> list[AttentionKind]:
  """The kinds of attention in a model: one in an encoder or a decoder, three in an encoder-decoder."""
  own = 'decoder' if isinstance(model, Decoder) else 'encoder'
  stack = model.stack()
  kinds = [AttentionKind(own, 'text', 'text', stack, ('stack',), 'mixer')]
  if hasattr(model, 'encode'):
    kinds = [
      AttentionKind('encoder', 'source', 'source', model.encoder().stack(), ('encoder', 'stack'), 'mixer'),
      *kinds,
      AttentionKind('cross', 'text', 'source', stack, ('stack',), 'cross'),
    ]
  return kinds


@functools.partial(jax.jit, static_argnums=0)
def compute_attention(model: nn.Module, params: PyTree, *inputs: Any) -> PyTree:
  """The attention weights that the mixers of a model sow for `inputs`, without dropout."""
  return model.apply({'params': params}, *inputs, mutable=[ATTENTION])[1].get(ATTENTION, {})


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
  """The weights of one row for one kind of attention.

  Attributes:
    kind: its name.
    queries, keys: labels of the tokens.
    layers: layer index → head index → weights, from 0.
  """

  kind: str
  queries: Sequence[str]
  keys: Sequence[str]
  layers: Mapping[int, Mapping[int, Float[np.ndarray, 'T S']]]


def compute_maps(
  model: nn.Module,
  params: PyTree,
  inputs: Sequence[Any],
  labels: Mapping[str, Sequence[str]],
  layers: Sequence[int] | None = None,
  heads: Sequence[int] | None = None,
) -> list[AttentionMaps]:
  """The maps of a model for the first row of `inputs`, for each kind with weights.

  Args:
    inputs: of the model.
    labels: of the tokens of 'text' and 'source'.
    layers, heads: indices to include, if they exist; None: all.
  """
  maps, sown = [], host_arrays.fetch(compute_attention(model, params, *inputs))
  for kind in list_kinds(model):
    selected = {
      i: {h: x[0, h] for h in range(x.shape[1]) if heads is None or h in heads}
      for i, x in enumerate(kind.weights(sown))
      if x is not None and (layers is None or i in layers)
    }
    selected = {i: of_layer for i, of_layer in selected.items() if of_layer}
    if selected:
      maps.append(AttentionMaps(kind.name, labels[kind.queries], labels[kind.keys], selected))
  return maps


def label_tokens(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
  """A readable label for each token.

  `<eos>` is the end-of-text token, with which a decoder's text starts; ␣ a space, ↵ a newline, ⇥ a tab;
  `<C3>` a byte that is no character, or an invisible character.
  """

  def show_character(c):
    if '\udc80' <= c <= '\udcff':  # a byte that is not UTF-8
      return f'<{ord(c) - 0xDC00:02X}>'
    return VISIBLE.get(c) or (c if c.isprintable() else f'<{ord(c):02X}>')

  def label(token):
    if token == tokenizer.eos_id:
      return '<eos>'
    return (
      ''.join(map(show_character, tokenizer.pieces[token].decode(errors='surrogateescape'))) or f'<{token}>'
    )

  return [label(int(token)) for token in tokens]
