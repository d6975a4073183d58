"""The definition of a published family: its config.json in our fields, and its tensors as our parameters.

A family is a file with `FAMILIES`. Both tables of a family work in either direction: `read` and `write` of
each of its `fields` convert a config.json to a config and back, and its `weights` pair tensors with
parameters, for loading and for saving. A family has no model code.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from tfm.errors import suggest
from tfm.hf.families._config_fields import Field, HfConfig
from tfm.spec import parse


class Part(NamedTuple):
  """A parameter that is a slice of a tensor.

  Attributes:
    path: of the parameter; `a/b[3]/c` is the fourth entry along the axis of stacked layers.
    count: entries of the parameter along the first axis of the rearranged tensor.
    pattern: einops, from these entries to the parameter; '' drops the axis, which then has one entry.
    sizes: of the axes in `pattern`.
  """

  path: str
  count: int = 1
  pattern: str = ''
  sizes: Mapping[str, int] = {}


class Weight(NamedTuple):
  """Tensors of a checkpoint, and the parameters that they hold.

    parameter = scale · rearrange(tensor, pattern) + offset

  Attributes:
    names: of one tensor, or of several, which are stacked along a new first axis.
    paths: of one parameter, or of several, which split the first axis: one entry each, or `Part.count`
      entries.
    pattern: einops, from the tensors to the parameters; '': unchanged.
    sizes: of the axes in `pattern`.
    skip_rows: unused rows at the start of the tensor; written as zeros.
  """

  names: str | tuple[str, ...]
  paths: str | tuple[str | Part, ...]
  pattern: str = ''
  sizes: Mapping[str, int] = {}
  scale: float = 1.0
  offset: float = 0.0
  skip_rows: int = 0

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
    model_type: its name in config.json.
    architectures: class of the published implementation → its output, one of `OUTPUTS`.
    fields: output → the fields of config.json.
    weights: config → its tensors and parameters; the tensor names are those of the class with an output.
    prefix: of tensor names other than the output's; a checkpoint without an output omits it.
    ignored_tensors: regular expression of tensors that are no parameters and do not change the output.
    constants: config → names and values of tensors that are constants; a checkpoint may lack them.
    tied_names: config → names of the embedding's table, which may be stored several times; the first is in
      `weights`.
    lm_head: name of the output's own tensor, for families whose config.json does not state whether the
      output is tied: it is tied if the tensor is missing or equals the embedding's table.
    unused_tensors: regular expression of parameters that do not change the output, such as a pooler; logged
      by name.
    unread_config_paths: paths of our config that the family's models do not read, such as the heads of a
      mixer that has none.
    position_counting: which ids of a row count as positions, one of `POSITION_COUNTING`.
  """

  model_type: str
  architectures: Mapping[str, str]
  fields: Callable[[str], Iterable[Field]]
  weights: Callable[[ConfigDict], Iterator[Weight]]
  prefix: str = ''
  ignored_tensors: str = r'$^'
  constants: Callable[[ConfigDict], Iterable[tuple[str, np.ndarray]]] = lambda config: ()
  tied_names: Callable[[ConfigDict], tuple[str, ...]] = lambda config: ()
  lm_head: str = ''
  unused_tensors: str = r'$^'
  position_counting: str = 'attended'
  unread_config_paths: tuple[str, ...] = ()

  def read(self, fields: Mapping[str, Any]) -> 'ParsedConfig':
    """Converts a config.json to fields of our config.

    Raises:
      ValueError: for a field that is missing, unknown, or has an unsupported value, by name.
    """
    hf_config = HfConfig(fields)
    name = (hf_config.get('architectures', None) or [next(iter(self.architectures))])[0]
    if not isinstance(name, str) or name not in self.architectures:
      raise ValueError(
        f'config.json: architectures={name!r} is not supported for model_type={self.model_type!r}; '
        f'{suggest(str(name), self.architectures)}'
      )
    config = {}
    for field in self.fields(self.architectures[name]):
      with hf_config.converting():
        field.read(hf_config, config)
    hf_config.reject_unread()
    if self.architectures[name] == 'features':
      config['model.tie_embeddings'] = True  # without an output there is no separate output table
    return ParsedConfig(config, self.architectures[name])

  def write(self, output: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a flat config (path → value) with `vocab` and the special token ids to a config.json.

    Raises:
      ValueError: for a value that the family does not support.
    """
    names = [name for name, class_output in self.architectures.items() if class_output == output]
    if not names:
      raise ValueError(
        f'{self.model_type!r} has no class with the output {output!r}; use one of '
        f'{", ".join(dict.fromkeys(self.architectures.values()))}'
      )
    hf_config = dict(architectures=[names[0]], model_type=self.model_type)
    for field in self.fields(output):
      field.write(config, hf_config)
    return hf_config


# The ids that count as positions, from 0: those with attention_mask 1; all, padding included; all but the
# padding id, whatever the attention mask.
POSITION_COUNTING = 'attended', 'all', 'not_padding'


class ParsedConfig(NamedTuple):
  """A config.json, converted.

  Attributes:
    fields: path → value of our config, and also `vocab` and `source_vocab`, the vocabulary sizes, and the
      `ids` of special tokens.
    output: one of `OUTPUTS`.
  """

  fields: dict[str, Any]
  output: str


# The output of a published class: hidden states only; logits over the vocabulary; classes of a text; classes
# of tokens; logits of pairs of an image and a text.
OUTPUTS = 'features', 'vocabulary', 'classes', 'token_classes', 'pairs'


def block_paths(config: ConfigDict, section: str = 'model') -> list[str]:
  """The parameter path of each block, in order; `section` is a config section with layers and a pattern."""
  part = config.model.encoder if section == 'model.encoder' else config.model
  root = 'encoder/stack' if section == 'model.encoder' else 'stack'
  size = max(1, len(part.pattern))
  repeats = part.layers // size

  def path(layer):
    repeat, i = divmod(layer, size)
    if repeat == repeats:
      return f'{root}/rest/block_{i}'
    return f'{root}/layers[{repeat}]/block_{i}' if config.model.scan else f'{root}/layers_{repeat}/block_{i}'

  return [path(layer) for layer in range(part.layers)]


def linear(name: str, path: str, pattern: str, bias: bool, **kwargs: Any) -> Iterator[Weight]:
  """A linear layer: `name.weight` ↔ `path/kernel`, and its bias, whose pattern is that of the kernel's
  outputs.

  The tensor is [out, in], as in PyTorch's linear layers: the pattern is `(…) d -> d …`.
  """
  yield Weight(f'{name}.weight', f'{path}/kernel', pattern, **kwargs)
  if bias:
    yield Weight(f'{name}.bias', f'{path}/bias', drop_axis(pattern, 'd'), **kwargs)


def drop_axis(pattern: str, axis: str) -> str:
  """An einops pattern without an axis; '' if the result is the identity."""
  left, right = (
    ' '.join(word for word in side.replace('(', ' ( ').replace(')', ' ) ').split() if word != axis)
    for side in pattern.split('->')
  )
  return '' if left == right else f'{left} -> {right}'


def bias_letters(section: ConfigDict) -> str:
  """The letters of the projections of a softmax mixer that have a bias."""
  letters = parse(section.mixer).kwargs.get('biases')
  return ('qkvo' if section.bias else '') if letters is None else letters


def norm(name: str, path: str, bias: bool, offset: float = 0.0) -> Iterator[Weight]:
  """A norm: `name.weight` ↔ `path/scale`, and its bias."""
  yield Weight(f'{name}.weight', f'{path}/scale', offset=offset)
  if bias:
    yield Weight(f'{name}.bias', f'{path}/bias')
