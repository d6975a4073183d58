"""A mixture of other sources by weights."""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from annotated_types import Interval

from tfm.data.interleaving import DECIMALS
from tfm.data.mixture import MixedCorpus
from tfm.data.sources import protocol
from tfm.errors import require, suggest


@dataclasses.dataclass(frozen=True, init=False)
class Mix(protocol.Source):
  """Several sources, each named by `config.data.sources` and with a weight: mix(web=0.7, code=0.3).

  A weight is the share of a source in the rows of training, exactly (`tfm.data.interleaving`), and in the
  loss of evaluation. Every source has its own epochs: a small one begins its next while a large one is in its
  first. The weights are the decimals as they are written, of at most six places, and their sum is 1.

  Attributes:
    weights: of each source, by name, in the order of the names.
    sources: in the same order.

  Raises:
    ValueError: for a source that has no name in `config.data.sources`, for a weight with more places, for
      another sum, or for sources of different kinds of documents.
  """

  weights: tuple[tuple[str, Fraction], ...]
  sources: tuple[protocol.Source, ...]

  def __init__(
    self, /, *, sources: Mapping[str, protocol.Source], **weights: Annotated[float, Interval(gt=0, le=1)]
  ):
    require(
      bool(sources),
      'it mixes sources that config.data.sources names, such as '
      'config.data.sources.web=\'text("*.txt")\'; these cannot be mixtures',
    )
    for name, weight in weights.items():
      require(name in sources, f'{name!r} is not in config.data.sources; {suggest(name, sources)}')
      require(
        weight == round(weight, DECIMALS), f'{name}={weight} has more than {DECIMALS} decimals; round it'
      )
    exact = {name: Fraction(repr(weight)) for name, weight in sorted(weights.items())}
    total = sum(exact.values())
    require(
      total == 1, f'the weights add up to {float(total)} and must add up to 1, as in mix(web=0.7, code=0.3)'
    )
    object.__setattr__(self, 'weights', tuple(exact.items()))
    object.__setattr__(self, 'sources', tuple(sources[name] for name in exact))
    for what in ('fields', 'image_shape'):
      kinds = {name: getattr(source, what) for name, source in self.parts.items()}
      (first, expected), *others = kinds.items()
      for name, kind in others:
        require(
          kind == expected,
          f'{first} has {what.replace("_", " ")} {expected} and {name} {kind}; mix sources of one kind',
        )

  @property
  def parts(self) -> dict[str, protocol.Source]:
    return dict(zip(dict(self.weights), self.sources))

  @property
  def fields(self) -> tuple[str, ...]:
    return self.sources[0].fields

  @property
  def image_shape(self) -> tuple[int, ...]:
    return self.sources[0].image_shape

  @property
  def is_infinite(self) -> bool:
    return any(source.is_infinite for source in self.sources)

  @property
  def spec(self) -> str:
    return f'mix({", ".join(f"{name}={float(weight)}" for name, weight in self.weights)})'

  def open_corpus(self, store):
    parts = {name: source.open_corpus(store) for name, source in self.parts.items()}
    return MixedCorpus.join(self.spec, dict(self.weights), parts)
