"""Imports run downward only: every arrow of every file of tfm is read and checked."""

import ast
import pathlib

import pytest


# From the top; what stands on one line is of one level, and may import within its own folder.
LEVELS = (
  ('commands',),  # one file a command: parse, call, print
  ('benchmark',),  # measured beside peers
  ('studies',),  # a question, its arms, runs, statistics and report
  ('hf',),  # published models in and out
  ('runs',),  # train, load, start from another run
  ('launch',),  # scripts for schedulers
  ('analysis',),  # what a config is and costs, computed without training it
  ('config',),  # fields, files, validation; specs become objects
  ('evaluation',),  # numbers and pictures of a trained model
  ('decoding',),  # text from a model
  ('training',),  # the step and the loop
  ('objectives',),  # slot: what is minimised
  ('data',),  # documents to batches
  ('models',),  # blocks, stacks, heads
  ('mixers', 'positions', 'masks', 'scores', 'kernels'),  # slots of attention
  ('layers',),  # what several slots need
  ('parallel',),  # meshes, sharding, pipelines, processes
  ('spec',),  # spec strings
  ('shapes', 'errors'),  # array types; refusals
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
SLOTS = ('mixers', 'positions', 'masks', 'scores', 'kernels')
BELOW_SLOTS = ('layers', 'parallel', 'spec', 'shapes', 'errors')
VAGUE = {'util', 'utils', 'common', 'helper', 'helpers', 'misc'}
FOREIGN = {'tensorflow', 'torch', 'transformers'}
DOOR = ['hf', 'pretrained']  # what the package itself hands out, when it is asked for
PEERS = 'benchmark'  # the one folder that knows what it is measured against


def imported(tree, package):
  """The dotted names of all modules that a file imports, wherever in the file; relative ones resolved."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      above = package[: len(package) - node.level + 1] if node.level else ()
      base = '.'.join((*above, *([node.module] if node.module else ())))
      yield base
      # `from tfm import spec` imports tfm.spec; `from tfm.spec import build` names no module: no harm.
      yield from (f'{base}.{alias.name}' for alias in node.names)


def violations(root):
  """One sentence for each arrow that runs up, or name that may not be, in the package at `root`."""
  modules = {}
  for path in sorted(root.rglob('*.py')):
    parts = (root.name, *path.relative_to(root).with_suffix('').parts)
    package = parts[:-1]
    modules['.'.join(package if parts[-1] == '__init__' else parts)] = (ast.parse(path.read_text()), package)
  found = []
  for name, (tree, package) in modules.items():
    place = name.split('.')[1:]
    if any(set(part.split('_')) & VAGUE for part in place):
      found.append(f'{name}: a module is named for what it does, not {place[-1]!r}')
    if place and place != ['__main__'] and place[0] not in LEVEL:
      found.append(f'{name}: {place[0]!r} has no place in LEVELS')
      continue
    for target in dict.fromkeys(imported(tree, package)):
      if target.split('.')[0] in FOREIGN and (target == 'tensorflow' or place[:1] != [PEERS]):
        found.append(f'{name} imports {target}, which tfm does without')
      if target in modules and target != root.name:
        found += arrow(name, place, target, target.split('.')[1:])
  return found


def arrow(name, place, target, to):
  """What is wrong with one module of the package importing another."""
  if place == ['__main__']:
    return
  if not place and to in (DOOR, DOOR[:1]):
    return
  if not place or LEVEL.get(to[0], -1) < LEVEL[place[0]] or to == ['__main__']:
    yield f'{name} imports {target}: the arrow runs up'
  elif LEVEL[to[0]] == LEVEL[place[0]] and to[0] != place[0]:
    yield f'{name} imports {target}: both are of one level'
  elif to[-1].startswith('_') and to[0] != place[0]:
    yield f'{name} imports {target}: a file that begins with _ is imported by its own folder alone'
  elif place[0] in SLOTS and to[0] not in BELOW_SLOTS and to != [place[0]]:
    if to[-1] != 'protocol' and not to[-1].startswith('_'):
      yield f"{name} imports {target}: a variant imports its own protocol.py, its folder's _files, and no sibling"


def test_tfm(root):
  found = violations(root / 'tfm')
  assert not found, '\n'.join(found)


def test_every_level_that_stands_is_read(root):
  """The test reads what it believes to read."""
  folder = root / 'tfm'
  tree = ast.parse((folder / 'mixers' / 'softmax.py').read_text())
  read = set(imported(tree, ('tfm', 'mixers')))
  assert {'tfm.layers.linear', 'tfm.mixers.protocol', 'tfm.parallel.sharding'} <= read
  standing = {p.stem for p in folder.iterdir() if p.suffix == '.py' or (p / '__init__.py').exists()}
  assert {'spec', 'config', 'mixers', 'models', 'layers'} <= standing


GOOD = {
  '__init__': '',
  '__main__': 'from tfm.commands.cli import main',
  'spec': 'import ast',
  'shapes': 'import jax',
  'errors': 'import difflib',
  'config/__init__': '',
  'config/schema': 'from tfm.spec import parse',
  'config/assemble/__init__': 'import tfm.masks\nfrom tfm import spec\nfrom tfm.config import schema',
  'commands/__init__': '',
  'commands/cli': 'from tfm.config import schema',
  'commands/train': 'from . import cli',
  'layers/__init__': '',
  'layers/linear': 'from tfm import shapes',
  'masks/__init__': '',
  'masks/protocol': 'from tfm.shapes import Array',
  'masks/causal': 'from .protocol import Mask\nfrom tfm.masks._grid import grid',
  'masks/_grid': '',
  'scores/__init__': '',
  'scores/dot': 'from tfm.layers import linear',
  'models/__init__': '',
  'models/block': 'from tfm.masks.protocol import Mask',
  'models/stack': 'from .block import B',
  'data/__init__': '',
  'data/text': 'import numpy',
}


def made(tmp_path, files):
  for name, text in (GOOD | files).items():
    path = tmp_path / 'tfm' / f'{name}.py'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return violations(tmp_path / 'tfm')


def test_a_good_tree_passes(tmp_path):
  assert made(tmp_path, {}) == []


@pytest.mark.parametrize(
  'file, text, complaint',
  [
    (
      'layers/linear',
      'from tfm.models.block import Block',
      'tfm.layers.linear imports tfm.models.block: the arrow runs up',
    ),
    ('layers/linear', 'from tfm.config import assemble', 'the arrow runs up'),
    ('layers/linear', 'import tfm.masks.causal', 'the arrow runs up'),
    (
      'layers/linear',
      'from ..masks import causal',
      'tfm.layers.linear imports tfm.masks.causal: the arrow runs up',
    ),
    ('layers/linear', 'def f():\n  from tfm.config import x', 'the arrow runs up'),
    ('spec', 'from tfm.config import leaves', 'the arrow runs up'),
    ('shapes', 'from tfm import errors', 'both are of one level'),
    ('data/text', 'from tfm.config import assemble', 'the arrow runs up'),
    ('data/text', 'from tfm.commands.train import main', 'the arrow runs up'),
    ('__init__', 'from tfm.models import block', 'the arrow runs up'),
    ('masks/__init__', 'from tfm.masks import causal', 'no sibling'),
    (
      'masks/window',
      'from tfm.masks.causal import Causal',
      'tfm.masks.window imports tfm.masks.causal: a variant imports',
    ),
    ('masks/window', 'from tfm.masks import causal', 'no sibling'),
    ('masks/window', 'from . import causal', 'no sibling'),
    ('masks/window', 'import tfm.masks.causal as c', 'no sibling'),
    ('masks/window', 'from tfm.scores.dot import Dot', 'both are of one level'),
    ('masks/window', 'from tfm.scores import _scaled', 'both are of one level'),
    ('models/block', 'from tfm.masks._grid import grid', 'imported by its own folder alone'),
    ('masks/window', 'import torch', 'tfm.masks.window imports torch'),
    ('data/text', 'def f():\n  import tensorflow.data as d', 'imports tensorflow.data'),
    ('data/text', 'from torch.nn import Linear', 'imports torch.nn'),
    ('data/utils', '', "not 'utils'"),
    ('data/text_helpers', '', "not 'text_helpers'"),
    ('common/__init__', '', "not 'common'"),
    ('losses/__init__', '', "'losses' has no place in LEVELS"),
  ],
)
def test_violations_are_caught(tmp_path, file, text, complaint):
  found = made(tmp_path, {file: text})
  assert any(complaint in sentence for sentence in found), found


def test_the_root_fixture_is_the_repository(root):
  assert (pathlib.Path(__file__).parent.parent) == root
