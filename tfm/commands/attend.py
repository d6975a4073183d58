"""Draws the attention weights of a trained model for a text, for every layer and head.

  tfm attend --workdir=runs/lm --input='To be, or not to be' --layers=0,5
  tfm attend --workdir=runs/en-de --input='A dog runs.' --target='Ein Hund läuft.'

Writes to DIR/attention one picture per kind of attention (encoder.png, decoder.png, cross.png), with layers
as rows and heads as columns, and index.html, a self-contained page to view single heads and weights. Layers
and heads count from 0. A row is a query token, a column a key token; a decoder reads the end-of-text token
first, <eos>. ␣ is a space, ↵ a newline, ⇥ a tab, <C3> a byte that is no character.

These are the weights by which the mixer multiplies the values, before dropout: after position, bias, mask,
soft cap and normalizer. Rows of a head with an attention sink sum to less than one.

--config.mesh.data=1 --config.mesh.fsdp=-1 divides the parameters among all devices, also among those of
several processes.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tfm import spec
from tfm.commands.cli import add_process_flags, add_run_flags, assign_overrides
from tfm.errors import require


if TYPE_CHECKING:
  from tfm.evaluation import attention_maps
  from tfm.mixers.protocol import Mixer

OVERRIDES = '--config.'  # --config.model.kernel=NAME, --config.mesh.fsdp=N


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add_run_flags(parser)
  add(
    '--input',
    required=True,
    metavar='TEXT|FILE',
    help='the text, or a UTF-8 file with the text; for an encoder-decoder, the source',
  )
  add(
    '--target',
    metavar='TEXT|FILE',
    help="target of an encoder-decoder (default: the model's translation by config.decoding)",
  )
  add('--layers', metavar='N,N,…', help='layers to show, counted from 0 (default: all)')
  add('--heads', metavar='N,N,…', help='heads to show, counted from 0 (default: all)')
  add('--to', metavar='DIR', help='folder of the pictures and the page (default: attention in --workdir)')
  add_process_flags(parser)


def main(args: argparse.Namespace) -> None:
  from tfm.evaluation import attention_maps, attention_page, attention_picture
  from tfm.parallel import processes
  from tfm.runs import load
  from tfm.runs.text_attention import compute_text_maps

  layers, heads = (parse_numbers(flag, getattr(args, flag)) for flag in ('layers', 'heads'))
  text = read_text('input', args.input)
  target = None if args.target is None else read_text('target', args.target)
  loaded = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  require(
    loaded.tokenizer is not None,
    f'--workdir={args.workdir} holds a model of images; --input requires a text model',
  )
  kinds = attention_maps.list_kinds(loaded.model)
  validate_selection(kinds, layers, heads, args.workdir)

  maps, tokens = compute_text_maps(loaded, text, target, layers, heads)
  if not processes.is_main_process():
    return  # it writes for all
  folder = pathlib.Path(args.to or pathlib.Path(args.workdir) / 'attention')
  folder.mkdir(parents=True, exist_ok=True)
  title = f'{args.workdir}, step {loaded.step}'
  if 'source' in tokens and target is None:
    print(f'translation: {loaded.tokenizer.decode(tokens["text"])}')
  for kind_maps in maps:
    file = folder / f'{kind_maps.kind}.png'
    attention_picture.draw(kind_maps, f'{title}: {kind_maps.kind} attention', file)
    heads_drawn = {head for of_layer in kind_maps.layers.values() for head in of_layer}
    print(f'{file}: layers {format_numbers(kind_maps.layers)}, heads {format_numbers(heads_drawn)}')
  for kind in kinds:
    if kind.name not in {kind_maps.kind for kind_maps in maps}:
      print(f'{kind.name}: none of the selected layers and heads')
    for name in dict.fromkeys(mixer_name(mixer) for mixer in kind.mixers if not mixer.exposes_attention):
      without = [i for i, mixer in enumerate(kind.mixers) if mixer_name(mixer) == name]
      print(f'{kind.name}: layers {format_numbers(without)} mix by {name!r}, which has no attention weights')
  attention_page.write_page(maps, f'Attention of {title}', folder / 'index.html')
  print(f'{folder / "index.html"}: page of all maps')


def parse_numbers(flag: str, value: str | None) -> list[int] | None:
  """Parses numbers such as `0,2,5`."""
  if value is None:
    return None
  words = value.split(',')
  require(
    all(word.strip().isdecimal() for word in words),
    f'--{flag}={value} is no list of numbers from 0 on; use, for example, 0,2,5',
  )
  return sorted({int(word) for word in words})


def read_text(flag: str, value: str) -> str:
  """A text from the command line, or from the file of this name, without the final newline."""
  if not os.path.isfile(value):
    # Invalid UTF-8 on the command line arrives as lone surrogates.
    require(not any('\ud800' <= c <= '\udfff' for c in value), f'--{flag}={value!r} is not UTF-8 text')
    return value
  try:
    return pathlib.Path(value).read_text(encoding='utf-8-sig').removesuffix('\n')
  except UnicodeDecodeError as error:
    raise ValueError(f'--{flag}={value} is not UTF-8 text: {error}') from None


def validate_selection(
  kinds: list[attention_maps.AttentionKind], layers: list[int] | None, heads: list[int] | None, workdir: str
) -> None:
  """Raises ValueError for a model, layers or heads without attention weights."""
  mixers = [(i, mixer) for kind in kinds for i, mixer in enumerate(kind.mixers)]
  head_counts = {}  # layer → heads, the most of all kinds
  for i, mixer in mixers:
    if mixer.exposes_attention:
      head_counts[i] = max(mixer.heads, head_counts.get(i, 0))
  names = dict.fromkeys(mixer_name(mixer) for _, mixer in mixers)
  require(
    bool(head_counts),
    f'--workdir={workdir} holds a model with {" and ".join(names)}, without attention '
    f'weights; use a model with {", ".join(list_mixers_with_weights())}',
  )
  for i in layers or ():
    require(
      i in head_counts,
      f'--layers: layer {i} has no attention weights; use some of {format_numbers(head_counts)}',
    )
  most = max(head_counts[i] for i in layers or head_counts)
  for i in heads or ():
    require(i < most, f'--heads: these layers have no head {i}; use some of {format_numbers(range(most))}')


def list_mixers_with_weights() -> list[str]:
  """The names of the mixers with attention weights."""
  import tfm.mixers
  from tfm.mixers.protocol import Mixer

  return [
    name
    for name in spec.variant_names(tfm.mixers)
    if spec.find_variant(name, tfm.mixers, Mixer).exposes_attention
  ]


def mixer_name(mixer: Mixer) -> str:
  """The name of a mixer in a spec."""
  return type(mixer).__module__.rpartition('.')[2]


def format_numbers(numbers: Iterable[int]) -> str:
  """Formats numbers as `0, 2, 5`, and consecutive ones as `0-5`."""
  numbers = sorted(numbers)
  runs = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
  return f'{numbers[0]}-{numbers[-1]}' if runs else ', '.join(map(str, numbers))
