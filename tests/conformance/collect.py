"""What the slot folders hold: every file is tested without anybody writing a test.

A variant is tried as its class's `examples` say, or under its bare name if it needs no arguments.
"""

import inspect
import itertools

import pytest

import tfm.kernels
import tfm.masks
import tfm.mixers
import tfm.positions
import tfm.scores
from tfm import spec
from tfm.kernels.protocol import Kernel
from tfm.masks.protocol import Mask, is_causal
from tfm.mixers.protocol import Mixer
from tfm.positions.protocol import Position
from tfm.scores.protocol import Score

SLOTS = {
  'mixer': (tfm.mixers, Mixer),
  'position': (tfm.positions, Position),
  'mask': (tfm.masks, Mask),
  'score': (tfm.scores, Score),
  'kernel': (tfm.kernels, Kernel),
}
# The surroundings in which the other slots' variants are tried, each in all that it has.
DEFAULTS = dict(mixer='softmax', position='rope', mask='causal')


def variants(slot: str) -> tuple[str, ...]:
  """The names of a slot's files."""
  return spec.names(SLOTS[slot][0])


def examples(slot: str, name: str) -> tuple[str, ...]:
  """The specs to try one file with; none if it has required arguments and does not say."""
  return tried(spec.find(name, *SLOTS[slot]), SLOTS[slot][1], name)


def tried(variant: type, base: type, name: str) -> tuple[str, ...]:
  """`examples` of a class."""
  return variant.examples or (() if required(variant, base) else (name,))


def required(variant: type, base: type) -> list[str]:
  """The arguments that a spec must give: what has no default and does not come from the model."""
  surroundings = {*inspect.signature(base).parameters, *SLOTS}
  return [name for name, parameter in inspect.signature(variant).parameters.items()
          if parameter.default is inspect.Parameter.empty and name not in surroundings]


def specs(slot: str) -> list[str]:
  """Every example of every variant of a slot."""
  return [text for name in variants(slot) for text in examples(slot, name)]


def mask(text: str) -> Mask:
  """The mask that a spec names."""
  return spec.build(text, tfm.masks, Mask)


def decoder_masks(texts: list[str], length: int) -> list[str]:
  """The masks as a decoder may have them: what looks ahead is put under `causal`."""
  return [text if is_causal(mask(text), length) else f'causal & ({text})' for text in texts]


def combinations(length: int) -> list:
  """mixer × position × mask, as pytest parameters.

  Every variant of each slot meets every variant of the two others, in its first example, and its
  further examples meet the defaults. Triples without any default would be the product of three
  growing folders; they run under `make test-slow`.
  """
  def first(slot):
    return [examples(slot, name)[0] for name in variants(slot) if examples(slot, name)]
  triples = list(itertools.product(first('mixer'), first('position'), decoder_masks(first('mask'), length)))
  for slot in DEFAULTS:
    texts = decoder_masks(specs(slot), length) if slot == 'mask' else specs(slot)
    triples += [tuple((DEFAULTS | {slot: text}).values()) for text in texts]
  def marks(triple):
    return [] if set(zip(DEFAULTS, triple)) & set(DEFAULTS.items()) else [pytest.mark.slow]
  return [pytest.param(*triple, marks=marks(triple), id=' · '.join(triple))
          for triple in dict.fromkeys(triples)]
