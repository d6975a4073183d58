"""What the slot folders hold: every file is tested without anybody writing a test.

A variant is tried as its class's `examples` say, or under its bare name if it needs no arguments.
"""

import inspect
import itertools
import os
import random

import pytest

import tfm.data.packing
import tfm.data.sources
import tfm.data.tokenizers
import tfm.exports
import tfm.masks
import tfm.objectives
import tfm.studies.measures
import tfm.training.sinks
from tfm import spec
from tfm.analysis.variant_catalogue import MODEL_SLOTS, SURROUNDINGS, surroundings
from tfm.analysis.variant_catalogue import SLOTS as LISTED_SLOTS
from tfm.data.packing.protocol import Packing
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.exports.protocol import Format
from tfm.masks.protocol import Mask, is_causal
from tfm.objectives.protocol import Objective
from tfm.studies.measures.protocol import Measure
from tfm.training.sinks.protocol import Sink


SLOTS = MODEL_SLOTS
# Slots that no field of the model fills.
OTHER_SLOTS = {
  'optimizer': LISTED_SLOTS['optimizer'],
  'objective': (tfm.objectives, Objective),
  'packing': (tfm.data.packing, Packing),
  'source': (tfm.data.sources, Source),
  'tokenizer': (tfm.data.tokenizers, Tokenizer),
  'measure': (tfm.studies.measures, Measure),
  'sink': (tfm.training.sinks, Sink),
  'export': (tfm.exports, Format),
}
ALL_SLOTS = SLOTS | OTHER_SLOTS


def variants(slot: str) -> tuple[str, ...]:
  """The names of a slot's files."""
  return spec.variant_names(ALL_SLOTS[slot][0])


def examples(slot: str, name: str) -> tuple[str, ...]:
  """The specs to try one file with; none if it has required arguments and does not say, or if its file is
  broken, which fails the test of that file alone.
  """
  try:
    kind = spec.find_variant(name, *ALL_SLOTS[slot])
  except ValueError:
    return ()
  return tried(kind, ALL_SLOTS[slot][1], name)


def variant(slot: str, text: str) -> type:
  """The class that a spec names."""
  return spec.find_variant(spec.parse(text).name, *ALL_SLOTS[slot])


def tried(variant: type, base: type, name: str) -> tuple[str, ...]:
  """`examples` of a class."""
  return variant.examples or (() if required(variant, base) else (name,))


def required(variant: type, base: type) -> list[str]:
  """The arguments that a spec must give: what has no default and does not come from the model."""
  surroundings = {*inspect.signature(base).parameters, *SLOTS}
  return [
    name
    for name, parameter in inspect.signature(variant).parameters.items()
    if parameter.default is inspect.Parameter.empty and name not in surroundings
  ]


def specs(slot: str) -> list[str]:
  """Every example of every variant of a slot that a decoder can have."""
  return [text for name in variants(slot) for text in examples(slot, name) if not is_conditioned(slot, text)]


def conditioned() -> list[str]:
  """Every example of every residual that diffusion models alone can have."""
  return [
    text
    for name in variants('residual')
    for text in examples('residual', name)
    if is_conditioned('residual', text)
  ]


def is_conditioned(slot: str, text: str) -> bool:
  """Whether a variant reads a condition, which a decoder does not have."""
  return slot == 'residual' and variant(slot, text).reads_condition


def mask(text: str) -> Mask:
  """The mask that a spec names."""
  return spec.build(text, tfm.masks, Mask)


def masks(texts: list[str], length: int, causal: bool = True) -> list[str]:
  """The masks as a decoder may have them, what looks ahead put under `causal`; or those that look ahead
  alone.
  """
  ahead = [text for text in texts if not is_causal(mask(text), length)]
  return [f'causal & ({text})' if text in ahead else text for text in texts] if causal else ahead


def takes(mixer: str, position: str, text: str) -> bool:
  """Whether a mixer says that it has a place for a position and honours a mask."""
  kind = variant('mixer', mixer)
  return variant('position', position).active_hooks() <= kind.position_hooks | {'embed'} and (
    kind.supported_masks is None or text in kind.supported_masks
  )


def first(slot: str) -> list[str]:
  """The first example of every variant of a slot that a decoder can have."""
  texts = [examples(slot, name)[0] for name in variants(slot) if examples(slot, name)]
  return [text for text in texts if not is_conditioned(slot, text)]


def combinations(length: int, causal: bool = True) -> list:
  """mixer, position, mask, one of them in the plainest surroundings, as pytest parameters.

  Masks are put under `causal`, or only those that look ahead. Of each variant other examples than the
  first wait for `make test-slow`; of what looks ahead, positions do too, as under `causal` they are tried.
  """
  default = SURROUNDINGS if causal else SURROUNDINGS | {'mask': 'full'}

  def alone(texts):
    """What `texts` picks of each slot."""
    found = []
    for mixer in texts('mixer'):
      around = surroundings(mixer) | ({} if causal else {'mask': 'full'})
      if takes(*around.values()) and is_causal(mask(around['mask']), length) == causal:
        found.append(tuple(around.values()))
    for slot, picked in (('position', texts('position')), ('mask', masks(texts('mask'), length, causal))):
      found += [tuple((default | {slot: text}).values()) for text in picked]
    return [triple for triple in dict.fromkeys(found) if takes(*triple)]

  quick = [triple for triple in alone(first) if causal or triple[1] == surroundings(triple[0])['position']]
  return [
    pytest.param(*triple, marks=[] if triple in quick else [pytest.mark.slow], id=' · '.join(triple))
    for triple in alone(specs)
  ]


def product(length: int, causal: bool = True) -> list:
  """Every valid mixer × position × mask, in their first examples, as pytest parameters.

  A third of a subset in which every pair of values occurs runs with the slow tests; the rest are marked
  `exhaustive`. TFM_ROTATION decides, which `session` sets to YEAR-WEEK-DAY: the third changes every day, the
  subset every week.
  """
  triples = itertools.product(first('mixer'), first('position'), masks(first('mask'), length, causal))
  triples = [triple for triple in triples if takes(*triple)]
  week, _, day = os.environ['TFM_ROTATION'].rpartition('-')
  cover = cover_pairs(triples, random.Random(week))[int(day) % 3 :: 3]
  return [
    pytest.param(
      *triple, id=' · '.join(triple), marks=pytest.mark.slow if triple in cover else pytest.mark.exhaustive
    )
    for triple in triples
  ]


def cover_pairs(triples: list[tuple], rng: random.Random) -> list[tuple]:
  """A small subset with every pair of values that two places of a triple take (greedy, ties at random)."""

  def pairs(triple):
    return set(itertools.combinations(enumerate(triple), 2))

  rest = rng.sample(triples, len(triples))
  missing, cover = set().union(*map(pairs, triples)), []
  while missing:
    best = max(rest, key=lambda triple: len(pairs(triple) & missing))
    missing -= pairs(best)
    cover.append(best)
  return cover


def refusals(length: int) -> list[tuple[str, str, str]]:
  """mixer, position, mask that do not go together: one of both is plain, the other not to be had."""
  result = []
  for mixer in first('mixer'):
    plain = surroundings(mixer)
    result += [tuple((plain | {'position': text}).values()) for text in first('position')]
    result += [tuple((plain | {'mask': text}).values()) for text in first('mask')]
  return [triple for triple in dict.fromkeys(result) if not takes(*triple)]
