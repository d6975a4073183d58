"""Draws what each token attends to, for every layer and head, as a trained model reads a text.

  tfm attend --workdir=runs/lm --input='To be, or not to be' --layers=0,5
  tfm attend --workdir=runs/en-de --input='A dog runs.' --target='Ein Hund läuft.'

DIR/attention gets a picture for each kind of attention, encoder.png, decoder.png and cross.png, layers down and
heads across, and index.html, a page that needs nothing else, to look at head after head and at every weight.
Layers and heads are counted from 0. A row is a token that reads, a column one that is read; a decoder reads
the end-of-text token first, <eos>. ␣ is a space, ↵ the end of a line, ⇥ a tab, <C3> a byte that is no character.

The weights are those that the mixer multiplies the values with, before dropout: after position, bias, mask,
soft cap and normalizer. A sink takes a share of its own, so that its head's rows sum to less than one.
"""

import argparse
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import tfm.mixers
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding import beam, loop
from tfm.decoding.unroll import unroll_layers
from tfm.errors import require
from tfm.evaluation import attention, attention_page, attention_picture
from tfm.mixers.protocol import Context, Mixer
from tfm.parallel import sharding
from tfm.runs import load
from tfm.shapes import Int


# Tokens of a text at most: beyond, a map has more cells than a screen.
LONGEST = 512


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='of a run that tfm train made')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--average',
    type=int,
    metavar='N',
    help='average the last N checkpoints (default: config.decoding.average_checkpoints)',
  )
  add(
    '--input',
    required=True,
    metavar='TEXT|FILE',
    help='what is read, of an encoder-decoder its source: a text, or a file in UTF-8 that holds it',
  )
  add(
    '--target',
    metavar='TEXT|FILE',
    help="what the decoder of an encoder-decoder reads (default: the model's own translation, by config.decoding)",
  )
  add('--layers', metavar='N,N,…', help='layers to show, counted from 0 (default: all)')
  add('--heads', metavar='N,N,…', help='heads to show, counted from 0 (default: all)')
  add('--output', metavar='DIR', help='where the maps are written (default: attention in that of --workdir)')


def main(args: argparse.Namespace) -> None:
  layers, heads = (numbers(flag, getattr(args, flag)) for flag in ('layers', 'heads'))
  text = read('input', args.input)
  target = None if args.target is None else read('target', args.target)
  loaded = load.load(args.workdir, args.step, args.average)
  require(
    loaded.tokenizer is not None, f'--workdir={args.workdir} holds a model of images, and --input is a text'
  )
  kinds = attention.list_kinds(loaded.model)
  check(kinds, layers, heads, args.workdir)

  inputs, tokens = asked(loaded, text, target)
  labels = {name: attention.label_tokens(row, tokenizer_of(loaded, name)) for name, row in tokens.items()}
  maps = attention.compute_maps(loaded.model, loaded.params, inputs, labels, layers, heads)
  folder = pathlib.Path(args.output or pathlib.Path(args.workdir) / 'attention')
  folder.mkdir(parents=True, exist_ok=True)
  title = f'{args.workdir}, step {loaded.step}'
  if 'source' in tokens and target is None:
    print(f'translation: {loaded.tokenizer.decode(tokens["text"])}')
  for found in maps:
    file = folder / f'{found.kind}.png'
    attention_picture.draw(found, f'{title}: {found.kind} attention', file)
    shown = {head for of_layer in found.layers.values() for head in of_layer}
    print(f'{file}: layers {listed(found.layers)}, heads {listed(shown)}')
  for kind in kinds:
    if kind.name not in {found.kind for found in maps}:
      print(f'{kind.name}: nothing of what is to be shown')
    for name in dict.fromkeys(named(mixer) for mixer in kind.mixers if not mixer.exposes_attention):
      without = [i for i, mixer in enumerate(kind.mixers) if named(mixer) == name]
      print(f'{kind.name}: layers {listed(without)} mix by {name!r}, which has no attention weights')
  attention_page.write_page(maps, f'Attention of {title}', folder / 'index.html')
  print(f'{folder / "index.html"}: the same, to browse')


def numbers(flag: str, given: str | None) -> list[int] | None:
  """The numbers of `0,2,5`."""
  if given is None:
    return None
  words = given.split(',')
  require(
    all(word.strip().isdecimal() for word in words),
    f'--{flag}={given} is no list of numbers from 0 on; one such as 0,2,5 would do',
  )
  return sorted({int(word) for word in words})


def read(flag: str, given: str) -> str:
  """A text of the command line, or of the file that it names, without the end of its last line."""
  if not os.path.isfile(given):
    # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
    require(not any('\ud800' <= c <= '\udfff' for c in given), f'--{flag}={given!r} is not UTF-8 text')
    return given
  try:
    return pathlib.Path(given).read_text(encoding='utf-8-sig').removesuffix('\n')
  except UnicodeDecodeError as error:
    raise ValueError(f'--{flag}={given} is not UTF-8 text: {error}') from None


def check(
  kinds: list[attention.AttentionKind], layers: list[int] | None, heads: list[int] | None, workdir: str
) -> None:
  """Refuses a model without weights, and layers and heads that have none."""
  mixers = [(i, mixer) for kind in kinds for i, mixer in enumerate(kind.mixers)]
  have = {}  # layer → heads, the most of all kinds
  for i, mixer in mixers:
    if mixer.exposes_attention:
      have[i] = max(mixer.heads, have.get(i, 0))
  names = dict.fromkeys(named(mixer) for _, mixer in mixers)
  require(
    bool(have),
    f'--workdir={workdir} holds a model that mixes by {" and ".join(names)}, without attention '
    f'weights; {", ".join(tellers())} have them',
  )
  for i in layers or ():
    require(i in have, f'--layers names {i}, which is none that has attention weights: {listed(have)}')
  most = max(have[i] for i in layers or have)
  for i in heads or ():
    require(i < most, f'--heads names {i}, which is none of the heads of these layers: {listed(range(most))}')


def tellers() -> list[str]:
  """The names of the mixers that have weights."""
  return [
    name
    for name in spec.variant_names(tfm.mixers)
    if spec.find_variant(name, tfm.mixers, Mixer).exposes_attention
  ]


def asked(
  loaded: load.Run, text: str, target: str | None
) -> tuple[list[Any], dict[str, Int[np.ndarray, 'T']]]:
  """What the model is called with to read a text, and the tokens of the 'text' and, of a pair, of the 'source'."""
  model, tokenizer = loaded.model, loaded.tokenizer
  pairs = hasattr(model, 'encode')
  require(pairs or target is None, '--target is for an encoder-decoder, and this model has one text, --input')

  def begun(text):
    ends = [tokenizer.eos_id] * (
      loaded.config.model.architecture == 'encoder'
    )  # as its texts have in training
    return np.array([tokenizer.bos_id, *tokenizer.encode(text), *ends], np.int32)

  if not pairs:
    tokens = dict(text=begun(text))
    check_length('input', tokens['text'], model.positions)
    return whole(tokens['text'], 'prefix' in model.reads), tokens
  reader = tokenizer_of(loaded, 'source')
  source = reader.source(text)
  check_length('input', source, model.encoder.keywords['positions'])
  tokens = dict(
    source=source, text=tokenizer.target(target) if target is not None else translation(loaded, source)
  )
  check_length('target', tokens['text'], model.positions)
  return [*whole(tokens['text']), None, *whole(source)], tokens


def whole(tokens: Int[np.ndarray, 'T'], prefixed: bool = False) -> list[Any]:
  """A row of tokens and its context.

  A mask that asks for a prefix is told that all was there before writing began, as `tfm generate` tells it.
  """
  context = Context.whole(tokens[None])
  if prefixed:
    context = context.replace(prefix=np.full_like(tokens[None], len(tokens) - 1))
  return [tokens[None], context]


def translation(loaded: load.Run, source: Int[np.ndarray, 'S']) -> Int[np.ndarray, 'T']:
  """What the decoder reads as it writes its best translation: that, behind what a target begins with."""
  decoding, eos, begins = loaded.config.decoding, loaded.tokenizer.eos_id, loaded.tokenizer.target()
  with sharding.context(loaded.mesh, loaded.rules):
    [found] = beam.search(
      *unroll_layers(loaded.model, loaded.params),
      [begins],
      sources=[source],
      eos=eos,
      beams=decoding.beams,
      penalty=Experiment(loaded.config).length_penalty,
      max_tokens=min(len(source) + decoding.max_extra_tokens, LONGEST - 1),
      stopping=decoding.stopping,
    )
  return np.array([*begins, *found[0].tokens], np.int32)


def check_length(flag: str, tokens: Int[np.ndarray, 'T'], positions: Sequence[Callable]) -> None:
  """Refuses a text of more tokens than a map can show, or a position tell."""
  require(
    len(tokens) <= LONGEST,
    f'--{flag} has {len(tokens)} tokens, and a map shows {LONGEST} at most; shorten it',
  )
  for name, reach in loop.list_position_limits(positions):
    require(
      len(tokens) <= reach, f'--{flag} has {len(tokens)} tokens, and {name} has {reach} positions; shorten it'
    )


def tokenizer_of(loaded: load.Run, name: str) -> Tokenizer:
  """The tokenizer of the 'text' or of the 'source'."""
  return (name == 'source' and loaded.source_tokenizer) or loaded.tokenizer


def named(mixer: Mixer) -> str:
  """What a spec calls a mixer."""
  return type(mixer).__module__.rpartition('.')[2]


def listed(found: Iterable[int]) -> str:
  """`0, 2, 5`, and `0-5` where none is left out."""
  found = sorted(found)
  runs = len(found) > 2 and found == list(range(found[0], found[-1] + 1))
  return f'{found[0]}-{found[-1]}' if runs else ', '.join(map(str, found))
