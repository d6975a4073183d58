"""What a published family is: what its config.json says in our fields, and where its tensors are our parameters.

A family is a file with one `FAMILY`. Both of its tables are read in either direction: `read` and `write` of each of
its `fields` turn a config.json into a config and back, and its `weights` pair tensors with parameters, for loading and
for saving. A family has no model of its own.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from tfm.errors import suggest
from tfm.hf.families.fields import Field, Given
from tfm.spec import parse


class Part(NamedTuple):
  """A parameter that is a part of a tensor.

  Attributes:
    path: of the parameter, `a/b[3]/c` the fourth along the axis of stacked layers.
    count: entries that it has of the first axis of the arranged tensor.
    pattern: einops, how those become the parameter; '': the axis, of one entry, goes. sizes: of its axes.
  """

  path: str
  count: int = 1
  pattern: str = ''
  sizes: Mapping[str, int] = {}


class Weight(NamedTuple):
  """Tensors of a checkpoint, and the parameters that they are.

    parameter = scale · rearrange(tensor, pattern) + offset

  Attributes:
    names: of a tensor, or of several, which are stacked along a first axis.
    paths: of a parameter, or of several, which lie along a first axis, one entry each, or as many as a `Part` says.
    pattern: einops, from the tensors to the parameters; '': they are the same. sizes: of its axes.
    skip: rows that stand before the first in the tensor and that nothing reads; written as zeros.
  """

  names: str | tuple[str, ...]
  paths: str | tuple[str | Part, ...]
  pattern: str = ''
  sizes: Mapping[str, int] = {}
  scale: float = 1.0
  offset: float = 0.0
  skip: int = 0

  @property
  def tensors(self) -> tuple[str, ...]:
    return (self.names,) if isinstance(self.names, str) else tuple(self.names)

  @property
  def parts(self) -> tuple[Part, ...]:
    return tuple(
      part if isinstance(part, Part) else Part(part)
      for part in ((self.paths,) if isinstance(self.paths, str) else self.paths)
    )


@dataclasses.dataclass(frozen=True)
class Family:
  """A published family.

  Attributes:
    model_type: what config.json calls it.
    architectures: class of the published implementation → what its output is, one of `OUTPUTS`.
    fields: output → what config.json says.
    weights: config → its tensors and parameters, under the names of the class that has an output.
    prefix: of the names of what is no output, which checkpoints without one leave out.
    ignored: a regular expression of tensors that are no parameters and change nothing.
    constants: config → names and values of tensors that are no parameters of ours; a checkpoint may lack them.
    twins: config → names under which the table of the embedding stands, one of them or several that are the same; the first is
      that of `weights`.
    head: of the tensor of an output of its own, where config.json is not the one to tell whether there is one: it is
      tied where there is no such tensor, or one that is the table.
    left_out: one of tensors that are parameters and change nothing of the output, such as a pooler; the log names them.
    unread: paths of our config that its models do not read, such as the heads of a mixer that has none.
    counts: which of a row's ids have positions, counted from 0; one of `COUNTS`.
  """

  model_type: str
  architectures: Mapping[str, str]
  fields: Callable[[str], Iterable[Field]]
  weights: Callable[[ConfigDict], Iterator[Weight]]
  prefix: str = ''
  ignored: str = r'$^'
  constants: Callable[[ConfigDict], Iterable[tuple[str, np.ndarray]]] = lambda config: ()
  twins: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
  head: str = ''
  left_out: str = r'$^'
  counts: str = 'shown'
  unread: tuple[str, ...] = ()

  def read(self, given: Mapping[str, Any]) -> 'Declared':
    """What a config.json says.

    Raises:
      ValueError: for a field that is missing, not understood, or has a value that cannot be honoured, by name.
    """
    given = Given(given)
    name = (given.take('architectures', None) or [next(iter(self.architectures))])[0]
    if name not in self.architectures:
      raise ValueError(
        f'config.json: architectures={name!r} is not read of {self.model_type!r}; '
        f'{suggest(name, self.architectures)}'
      )
    found = {}
    for field in self.fields(self.architectures[name]):
      field.read(given, found)
    given.refuse_others()
    if self.architectures[name] == 'features':
      found['model.tie_embeddings'] = True  # there is no output that could have a table of its own
    return Declared(found, self.architectures[name])

  def write(self, output: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a flat config (path → value) with `vocab` and the ids of its tokens.

    Raises:
      ValueError: for a value that the family cannot say.
    """
    [name, *_] = [name for name, its in self.architectures.items() if its == output] or [None]
    if name is None:
      raise ValueError(
        f'{self.model_type!r} has no class with the output {output!r}; it has '
        f'{", ".join(dict.fromkeys(self.architectures.values()))}'
      )
    made = dict(architectures=[name], model_type=self.model_type)
    for field in self.fields(output):
      field.write(config, made)
    return made


# What the published implementation counts: the tokens that the mask shows; padding too, wherever it stands; all ids but
# that of padding, whatever the mask shows.
COUNTS = 'shown', 'all', 'filled'


class Declared(NamedTuple):
  """A config.json, read.

  Attributes:
    fields: path → value of our config; besides `vocab` and `source_vocab`, how many tokens there are, and the `ids` of
      some.
    output: one of `OUTPUTS`.
  """

  fields: dict[str, Any]
  output: str


# What a class answers: nothing but hidden states, the next token or hidden ones, classes of a text, or of its words.
OUTPUTS = 'features', 'vocabulary', 'classes', 'classes of words'


def blocks(config: ConfigDict, where: str = 'model') -> list[str]:
  """The path of each block, the first one's first; `where` is a section with layers and a pattern."""
  part = config.model.encoder if where == 'model.encoder' else config.model
  root = 'encoder/stack' if where == 'model.encoder' else 'stack'
  size = max(1, len(part.pattern))
  turns = part.layers // size

  def path(layer):
    turn, i = divmod(layer, size)
    if turn == turns:
      return f'{root}/rest/block_{i}'
    return f'{root}/layers[{turn}]/block_{i}' if config.model.scan else f'{root}/layers_{turn}/block_{i}'

  return [path(layer) for layer in range(part.layers)]


def both(name: str, path: str, pattern: str, bias: bool, **kwargs: Any) -> Iterator[Weight]:
  """A projection `name.weight` ↔ `path/kernel`, and its bias, whose pattern is that of the kernel's outputs.

  The tensor is [out, in], as PyTorch's linear layers have it: the pattern is `(…) d -> d …`.
  """
  yield Weight(f'{name}.weight', f'{path}/kernel', pattern, **kwargs)
  if bias:
    yield Weight(f'{name}.bias', f'{path}/bias', without(pattern, 'd'), **kwargs)


def without(pattern: str, axis: str) -> str:
  """An einops pattern without an axis; '' if nothing is left to do."""
  left, right = (
    ' '.join(word for word in side.replace('(', ' ( ').replace(')', ' ) ').split() if word != axis)
    for side in pattern.split('->')
  )
  return '' if left == right else f'{left} -> {right}'


def biases(section: ConfigDict) -> str:
  """The letters of the projections of a softmax mixer that have a bias."""
  told = parse(section.mixer).kwargs.get('biases')
  return ('qkvo' if section.bias else '') if told is None else told


def norm(name: str, path: str, bias: bool, offset: float = 0.0) -> Iterator[Weight]:
  """A norm `name.weight` ↔ `path/scale`, and its bias."""
  yield Weight(f'{name}.weight', f'{path}/scale', offset=offset)
  if bias:
    yield Weight(f'{name}.bias', f'{path}/bias')
