"""Attention maps: how much of each token every token reads, by layer and head."""

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
from tfm.shapes import Float, PyTree


# What stands for characters that a label could not show.
VISIBLE = {' ': '␣', '\n': '↵', '\t': '⇥'}


@dataclasses.dataclass(frozen=True)
class Kind:
  """One kind of attention in a model.

  Attributes:
    name: 'encoder' and 'decoder' of self-attention, 'cross' of a decoder's to its encoder.
    queries, keys: whose tokens ask and are asked, 'source' or 'text'.
    stack: whose blocks attend; path: the modules from the model to it.
    branch: of a block: 'mixer' or 'cross'.
  """

  name: str
  queries: str
  keys: str
  stack: Stack
  path: tuple[str, ...]
  branch: str

  @property
  def mixers(self) -> list[Mixer]:
    """What attends in each layer."""
    turn = [getattr(block(), self.branch)() for block in self.stack.pattern]
    return [turn[i % len(turn)] for i in range(self.stack.layers)]

  def weights(self, told: PyTree) -> list[Float[np.ndarray, 'B H T S'] | None]:
    """Those of each layer, from what a whole model has told of itself; None of a mixer that has none."""
    for name in self.path:
      told = told.get(name, {})
    blocks = (block or {} for block in self.stack.by_layer(told))
    return [block.get(self.branch, {}).get('weights') for block in blocks]


def kinds(model: nn.Module) -> list[Kind]:
  """The kinds of attention that a model has: an encoder's, a decoder's or, of an encoder-decoder, three."""
  own = 'decoder' if isinstance(model, Decoder) else 'encoder'
  stack = model.stack()
  found = [Kind(own, 'text', 'text', stack, ('stack',), 'mixer')]
  if hasattr(model, 'encode'):
    found = [
      Kind('encoder', 'source', 'source', model.encoder().stack(), ('encoder', 'stack'), 'mixer'),
      *found,
      Kind('cross', 'text', 'source', stack, ('stack',), 'cross'),
    ]
  return found


@functools.partial(jax.jit, static_argnums=0)
def told(model: nn.Module, params: PyTree, *inputs: Any) -> PyTree:
  """What the mixers of a model tell of their weights as it reads `inputs`, without dropout."""
  return model.apply({'params': params}, *inputs, mutable=[ATTENTION])[1].get(ATTENTION, {})


@dataclasses.dataclass(frozen=True)
class Maps:
  """The weights of one row for one kind of attention.

  Attributes:
    kind: its name; queries, keys: labels of the tokens.
    layers: number of a layer → number of a head → weights, both counted from 0.
  """

  kind: str
  queries: Sequence[str]
  keys: Sequence[str]
  layers: Mapping[int, Mapping[int, Float[np.ndarray, 'T S']]]


def maps(
  model: nn.Module,
  params: PyTree,
  inputs: Sequence[Any],
  labels: Mapping[str, Sequence[str]],
  layers: Sequence[int] | None = None,
  heads: Sequence[int] | None = None,
) -> list[Maps]:
  """The maps of a model as it reads the first row of `inputs`, of each kind that has some.

  Args:
    inputs: what the model is called with.
    labels: of the tokens of the 'text' and the 'source'.
    layers, heads: to be had, where they are there; None: all.
  """
  found, said = [], jax.device_get(told(model, params, *inputs))
  for kind in kinds(model):
    chosen = {
      i: {h: x[0, h] for h in range(x.shape[1]) if heads is None or h in heads}
      for i, x in enumerate(kind.weights(said))
      if x is not None and (layers is None or i in layers)
    }
    chosen = {i: of_layer for i, of_layer in chosen.items() if of_layer}
    if chosen:
      found.append(Maps(kind.name, labels[kind.queries], labels[kind.keys], chosen))
  return found


def labels(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
  """A readable label for each token.

  `<eos>` is the end of a text, with which a decoder's begins; ␣ a space, ↵ the end of a line, ⇥ a tab;
  `<C3>` a byte that is no character, or a character that is not to be seen.
  """

  def shown(c):
    if '\udc80' <= c <= '\udcff':  # a byte that is no UTF-8
      return f'<{ord(c) - 0xDC00:02X}>'
    return VISIBLE.get(c) or (c if c.isprintable() else f'<{ord(c):02X}>')

  def label(token):
    if token == tokenizer.eos_id:
      return '<eos>'
    return ''.join(map(shown, tokenizer.pieces[token].decode(errors='surrogateescape'))) or f'<{token}>'

  return [label(int(token)) for token in tokens]
