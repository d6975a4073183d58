"""Imports run downward only: the test reads every import of every file of tfm."""

import ast
import pathlib

import pytest

import tfm


# The levels, from the top. A folder imports from lower levels and from itself, not from others of its level.
LEVELS = (
  ('commands',),  # one file per command: parse, call, print
  ('conformance',),  # what every variant is tested for
  ('benchmark',),  # speed and memory beside other frameworks
  ('board',),  # a local page of runs and studies
  ('studies',),  # a question, its arms, their runs, statistics and report
  ('serving',),  # a model over HTTP
  ('exports',),  # formats in which a model leaves
  ('hf',),  # published models in and out
  ('runs',),  # train, load, start from another run
  ('launch',),  # scripts for schedulers
  ('analysis',),  # what a config is and costs, without training it
  ('config',),  # fields, files, validation; spec strings become objects
  ('evaluation',),  # metrics and pictures of a trained model
  ('decoding',),  # text from a model
  ('training',),  # the step and the loop
  ('objectives',),  # slot: the loss
  ('optimizers',),  # slot: Optax transformations
  ('data',),  # documents to batches
  ('models',),  # blocks, stacks, heads
  ('mixers', 'positions', 'masks', 'scores', 'kernels', 'feed_forwards', 'residuals'),  # slots of a block
  ('norms',),  # slot: below the others, because mixers and positions contain norms
  ('layers',),  # what several slots need
  ('parallel',),  # meshes, sharding, pipelines, processes
  ('spec',),  # spec strings
  ('variant_folders',),  # variants outside the package
  ('shapes', 'errors'),  # array types; refusals
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
SLOTS = (
  'mixers',
  'positions',
  'masks',
  'scores',
  'kernels',
  'feed_forwards',
  'residuals',
  'norms',
  'optimizers',
)
BELOW_SLOTS = ('norms', 'layers', 'parallel', 'spec', 'shapes', 'errors')
VAGUE_NAMES = {'util', 'utils', 'common', 'helper', 'helpers', 'misc'}
FOREIGN_PACKAGES = {'tensorflow', 'torch', 'transformers'}
# The modules of the names of `tfm`, imported on first use.
DOORS = [module.split('.')[1:] for module in tfm._MODULES.values()]
SUITE = 'conformance'  # it looks into the slots' folders
PEERS = 'benchmark'  # the only folder that may import other frameworks


def imported_names(tree, package):
  """Dotted names of all modules that a file imports, anywhere in the file; relative imports are resolved."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      above = package[: len(package) - node.level + 1] if node.level else ()
      base = '.'.join((*above, *([node.module] if node.module else ())))
      yield base
      # `from tfm import spec` imports tfm.spec; `from tfm.spec import build` names no module, which is
      # harmless.
      yield from (f'{base}.{alias.name}' for alias in node.names)


def find_violations(root):
  """One sentence per forbidden import or name in the package at `root`."""
  modules = {}
  for path in sorted(root.rglob('*.py')):
    parts = (root.name, *path.relative_to(root).with_suffix('').parts)
    package = parts[:-1]
    modules['.'.join(package if parts[-1] == '__init__' else parts)] = (ast.parse(path.read_text()), package)
  violations = []
  for name, (tree, package) in modules.items():
    place = name.split('.')[1:]
    if any(set(part.split('_')) & VAGUE_NAMES for part in place):
      violations.append(f'{name}: {place[-1]!r} is too vague; name the module after what it holds')
    if place and place != ['__main__'] and place[0] not in LEVEL:
      violations.append(f'{name}: {place[0]!r} is not in LEVELS')
      continue
    for target in dict.fromkeys(imported_names(tree, package)):
      if target.split('.')[0] in FOREIGN_PACKAGES and (target == 'tensorflow' or place[:1] != [PEERS]):
        violations.append(f'{name} imports {target}, which only benchmark/ may import')
      if target in modules and target != root.name:
        violations += check_import(name, place, target, target.split('.')[1:])
  return violations


def check_import(name, place, target, to):
  """Yields what is wrong with one module of the package importing another."""
  if place == ['__main__']:
    return
  if not place and any(door[: len(to)] == to for door in DOORS):
    return
  if not place or LEVEL.get(to[0], -1) < LEVEL[place[0]] or to == ['__main__']:
    yield f'{name} imports {target}: imports run downward only'
  elif LEVEL[to[0]] == LEVEL[place[0]] and to[0] != place[0]:
    yield f'{name} imports {target}: both are on the same level'
  elif to[-1].startswith('_') and to[0] != place[0] and place[0] != SUITE:
    yield f'{name} imports {target}: only its own folder may import a file that begins with _'
  elif place[0] in SLOTS and (to[0] == place[0] or to[0] not in BELOW_SLOTS) and to != [place[0]]:
    if to[-1] != 'protocol' and not to[-1].startswith('_'):
      yield f'{name} imports {target}: a variant imports protocol.py and _files of its folder only'


def test_tfm_has_no_violation(root):
  violations = find_violations(root / 'tfm')
  assert not violations, '\n'.join(violations)


def test_the_root_holds_only_what_every_folder_needs(root):
  files = {path.stem for path in (root / 'tfm').glob('*.py')}
  assert files == {'__init__', '__main__', 'variant_folders', 'shapes', 'errors'}


def test_no_folder_has_a_name_that_tools_skip(root):
  folders = {path.name for path in (root / 'tfm').rglob('*') if path.is_dir()}
  assert not folders & {'build', 'dist', 'env'}


def test_known_imports_are_found(root):
  """The test reads real imports of real files."""
  folder = root / 'tfm'
  tree = ast.parse((folder / 'mixers' / '_attention.py').read_text())
  read = set(imported_names(tree, ('tfm', 'mixers')))
  assert {'tfm.layers.linear', 'tfm.mixers.protocol', 'tfm.parallel.sharding'} <= read
  present = {p.stem for p in folder.iterdir() if p.suffix == '.py' or (p / '__init__.py').exists()}
  assert {'spec', 'config', 'mixers', 'models', 'layers'} <= present


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
  'masks/causal': 'from .protocol import Mask\nfrom tfm.masks._grid import make_grid',
  'masks/_grid': '',
  'scores/__init__': '',
  'scores/dot': 'from tfm.layers import linear',
  'models/__init__': '',
  'models/block': 'from tfm.masks.protocol import Mask',
  'models/stack': 'from .block import B',
  'data/__init__': '',
  'data/text': 'import numpy',
}


def violations_of(tmp_path, files):
  for name, text in (GOOD | files).items():
    path = tmp_path / 'tfm' / f'{name}.py'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return find_violations(tmp_path / 'tfm')


def test_a_valid_tree_passes(tmp_path):
  assert violations_of(tmp_path, {}) == []


@pytest.mark.parametrize(
  'file, text, message',
  [
    (
      'layers/linear',
      'from tfm.models.block import Block',
      'tfm.layers.linear imports tfm.models.block: imports run downward only',
    ),
    ('layers/linear', 'from tfm.config import assemble', 'imports run downward only'),
    ('layers/linear', 'import tfm.masks.causal', 'imports run downward only'),
    (
      'layers/linear',
      'from ..masks import causal',
      'tfm.layers.linear imports tfm.masks.causal: imports run downward only',
    ),
    ('layers/linear', 'def f():\n  from tfm.config import x', 'imports run downward only'),
    ('spec', 'from tfm.config import leaves', 'imports run downward only'),
    ('shapes', 'from tfm import errors', 'both are on the same level'),
    ('data/text', 'from tfm.config import assemble', 'imports run downward only'),
    ('data/text', 'from tfm.commands.train import main', 'imports run downward only'),
    ('__init__', 'from tfm.models import block', 'imports run downward only'),
    ('masks/__init__', 'from tfm.masks import causal', 'a variant imports'),
    (
      'masks/window',
      'from tfm.masks.causal import Causal',
      'tfm.masks.window imports tfm.masks.causal: a variant imports',
    ),
    ('masks/window', 'from tfm.masks import causal', 'a variant imports'),
    ('masks/window', 'from . import causal', 'a variant imports'),
    ('masks/window', 'import tfm.masks.causal as c', 'a variant imports'),
    ('masks/window', 'from tfm.scores.dot import Dot', 'both are on the same level'),
    ('masks/window', 'from tfm.scores import _scaled', 'both are on the same level'),
    ('models/block', 'from tfm.masks._grid import make_grid', 'only its own folder may import'),
    ('masks/window', 'import torch', 'tfm.masks.window imports torch'),
    ('data/text', 'def f():\n  import tensorflow.data as d', 'imports tensorflow.data'),
    ('data/text', 'from torch.nn import Linear', 'imports torch.nn'),
    ('data/utils', '', "'utils' is too vague"),
    ('data/text_helpers', '', "'text_helpers' is too vague"),
    ('common/__init__', '', "'common' is too vague"),
    ('losses/__init__', '', "'losses' is not in LEVELS"),
  ],
)
def test_violations_are_found(tmp_path, file, text, message):
  violations = violations_of(tmp_path, {file: text})
  assert any(message in violation for violation in violations), violations


def test_the_tested_package_is_that_of_this_repository(root):
  assert pathlib.Path(tfm.__file__).parent == root / 'tfm' and (root / 'setup.cfg').is_file()
