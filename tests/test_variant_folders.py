"""Variants outside the package: spec strings, clashes, and runs that remember where theirs came from."""

import importlib
import json
import sys

import pytest

import tfm.data.sources
import tfm.feed_forwards
import tfm.masks
import tfm.positions
from tfm import spec, variant_folders
from tfm.analysis import variant_catalogue
from tfm.commands import cli
from tfm.masks.protocol import Mask
from tfm.runs import load
from tfm.runs.run_dir import RunDir
from tfm.runs.train import train, train_ensemble


STRIDED = '''"""Every nth token."""

import dataclasses

from tfm.masks._strides import is_multiple
from tfm.masks.protocol import Mask


@dataclasses.dataclass(frozen=True)
class Strided(Mask):
  """(q - k) divisible by step."""

  examples = ('strided(2)',)
  relative = True

  step: int

  def __call__(self, q, k):
    return is_multiple(q - k, self.step)
'''
STRIDES = '''"""What several masks of this folder share."""


def is_multiple(x, step):
  return x % step == 0
'''
PACKAGES = tfm.masks, tfm.positions, tfm.feed_forwards, tfm.data.sources


@pytest.fixture(autouse=True)
def no_folders(monkeypatch):
  """No folder is known before and after a test."""
  monkeypatch.delenv('TFM_VARIANTS', raising=False)
  monkeypatch.setattr(variant_folders, '_origins', {})
  variant_folders._add_configured_folders.cache_clear()
  paths, modules = [list(package.__path__) for package in PACKAGES], set(sys.modules)
  yield
  for package, path in zip(PACKAGES, paths):
    package.__path__[:] = path
  for name in set(sys.modules) - modules:
    if name.startswith('tfm.') and not sys.modules[name].__file__.startswith(str(variant_folders.PACKAGE)):
      parent, _, child = name.rpartition('.')
      del sys.modules[name]
      vars(sys.modules[parent]).pop(child, None)
  variant_folders._add_configured_folders.cache_clear()


@pytest.fixture
def lab(tmp_path):
  """A folder with the mask `strided`."""
  return make_lab(tmp_path / 'lab')


def make_lab(folder):
  (folder / 'masks').mkdir(parents=True)
  (folder / 'masks' / 'strided.py').write_text(STRIDED)
  (folder / 'masks' / '_strides.py').write_text(STRIDES)
  return folder


def build(text):
  return spec.build(text, tfm.masks, Mask)


def test_a_file_of_a_folder_is_a_variant_like_any_other(lab):
  assert 'strided' not in spec.variant_names(tfm.masks)
  variant_folders.add_folder(lab)
  assert 'strided' in spec.variant_names(tfm.masks) and '_strides' not in spec.variant_names(tfm.masks)
  mask = build('causal & strided(2)')
  assert [bool(mask(4, k)) for k in range(6)] == [True, False, True, False, True, False]
  with pytest.raises(spec.SpecError, match=r"'strided\(0.5\)': step=0.5 must be of type int"):
    build('strided(0.5)')
  with pytest.raises(spec.SpecError, match="did you mean 'strided'"):
    build('stride(2)')


def test_a_file_of_a_folder_is_a_module(lab):
  variant_folders.add_folder(lab)
  assert importlib.import_module('tfm.masks.strided').Strided(2)(4, 2)


def test_a_broken_file_is_named(lab):
  (lab / 'masks' / 'strided.py').write_text('import nothing_of_this_name')
  variant_folders.add_folder(lab)
  with pytest.raises(ValueError, match=r'strided.py cannot be read as a variant of masks: Module') as raised:
    build('strided(2)')
  assert 'line 1 of' in variant_folders.describe_origin(raised.value)


@pytest.mark.parametrize('error', [TypeError, ValueError])
def test_what_a_variant_raises_is_reported_with_its_line(lab, tmp_path, capsys, error):
  code = f'return is_multiple(q - k, {error.__name__})'
  (lab / 'masks' / 'strided.py').write_text(STRIDED.replace('return is_multiple(q - k, self.step)', code))
  (lab / 'masks' / '_strides.py').write_text('def is_multiple(x, step):\n  raise step("too many strides")')
  expected = f'raised by the variant masks/_strides, line 2 of {lab}/masks/_strides.py: raise step("too'
  words = ['train', '--config=lm:smoke', f'--workdir={tmp_path}/run', f'--variants={lab}']
  words.append('--config.model.mask=causal & strided(2)')
  if error is ValueError:
    assert cli.main(words) == 2 and expected in capsys.readouterr().err
  else:
    with pytest.raises(error) as raised:
      cli.main(words)
    assert raised.value.__notes__[-1].startswith(expected)


def test_a_refusal_by_a_variant_is_one_sentence(lab):
  variant_folders.add_folder(lab)
  text = STRIDED + '\n  def __post_init__(self):\n    raise ValueError("step is odd")\n'
  (lab / 'masks' / 'strided.py').write_text(text)
  with pytest.raises(spec.SpecError) as raised:
    build('strided(2)')
  assert 'step is odd' in str(raised.value) and not variant_folders.describe_origin(raised.value)


def test_the_environment_names_folders(lab, tmp_path, monkeypatch):
  (tmp_path / 'other' / 'data' / 'sources').mkdir(parents=True)
  (tmp_path / 'other' / 'data' / 'sources' / 'mine.py').touch()
  monkeypatch.setenv('TFM_VARIANTS', f'{lab}:{tmp_path}/other')
  assert 'strided' in spec.variant_names(tfm.masks) and 'mine' in spec.variant_names(tfm.data.sources)
  assert build('strided(3)') == build('strided(3)')


def test_an_installed_package_names_a_folder(tmp_path, monkeypatch):
  make_lab(tmp_path / 'mylab' / 'variants')
  (tmp_path / 'mylab' / '__init__.py').touch()
  (tmp_path / 'mylab' / 'variants' / '__init__.py').touch()
  info = tmp_path / 'mylab-1.2.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: mylab\nVersion: 1.2\n')
  (info / 'entry_points.txt').write_text('[tfm.variants]\nmylab = mylab.variants\n')
  monkeypatch.syspath_prepend(tmp_path)
  with variant_folders.recording() as variants:
    build('strided(2)')
  assert variants == {'masks/strided': 'the package mylab 1.2'}
  (info / 'entry_points.txt').write_text('[tfm.variants]\nmylab = json.decoder\n')
  variant_folders._add_configured_folders.cache_clear()
  with pytest.raises(ValueError, match="'mylab' of tfm.variants names 'json.decoder', which is no package"):
    build('strided(2)')


def test_folders_that_cannot_be_used_are_refused(lab, tmp_path):
  with pytest.raises(ValueError, match='--variants=nowhere is no folder'):
    variant_folders.add_folder('nowhere', '--variants=')
  (tmp_path / 'odd' / 'notes').mkdir(parents=True)
  with pytest.raises(ValueError, match='odd has no folder of a slot, which are data/packing, .*masks'):
    variant_folders.add_folder(tmp_path / 'odd')
  for wrong, right in (('position', 'positions'), ('data/source', 'data/sources')):
    (lab / wrong).mkdir(parents=True)
    with pytest.raises(ValueError, match=f'lab has {wrong}/, which is no slot; rename it to {right}'):
      variant_folders.add_folder(lab)
    (lab / wrong).rmdir()
  (lab / 'positions').mkdir()
  (lab / 'positions' / 'rope.py').touch()
  with pytest.raises(ValueError, match=r'lab has positions/rope.py, and so has .*/tfm; rename the file'):
    variant_folders.add_folder(lab)
  (lab / 'positions' / 'rope.py').unlink()
  variant_folders.add_folder(lab)
  variant_folders.add_folder(lab)  # naming it twice is one folder
  with pytest.raises(ValueError, match=r'twin has masks/_strides.py, and so has .*/lab; rename the file'):
    variant_folders.add_folder(make_lab(tmp_path / 'twin'))


def test_a_run_remembers_its_variants_and_is_not_read_without_them(lab, tiny, tmp_path, monkeypatch):
  variant_folders.add_folder(lab)
  config = tiny(**{'model.mask': 'causal & strided(2)', 'training.steps': 2})
  train(config, tmp_path / 'mine')
  train(tiny(**{'training.steps': 2}), tmp_path / 'plain')
  recorded = load.checkpoint_metadata(tmp_path / 'mine')['variants']
  assert recorded == {'masks/strided': str(lab)}
  assert load.checkpoint_metadata(tmp_path / 'plain')['variants'] == {}
  assert load.load(tmp_path / 'mine').model is not None

  forget(lab, monkeypatch)
  sentence = f'mine needs masks/strided.py, a variant that tfm does not have; add --variants={lab}'
  for read in (load.load, load.checkpoint_metadata):
    with pytest.raises(ValueError, match=sentence):
      read(tmp_path / 'mine')
  with pytest.raises(ValueError, match=sentence):
    RunDir.from_config(config, 0, tmp_path / 'mine').checkpoint_metadata(2)
  assert load.load(tmp_path / 'plain').step == 2
  # The same file at another place serves too.
  variant_folders.add_folder(lab.rename(tmp_path / 'moved'))
  assert load.load(tmp_path / 'mine').step == 2


def forget(lab, monkeypatch):
  """As in a new process that does not name the folder."""
  monkeypatch.setattr(variant_folders, '_origins', {})
  tfm.masks.__path__.remove(str(lab / 'masks'))
  for name in ('strided', '_strides'):
    del sys.modules[f'tfm.masks.{name}']
    delattr(tfm.masks, name)
  importlib.invalidate_caches()


def test_a_missing_package_is_to_be_installed():
  with pytest.raises(ValueError, match='x needs masks/strided.py, .*; install the package mylab 1.2'):
    variant_folders.require_available({'masks/strided': 'the package mylab 1.2'}, 'x')


def test_every_command_takes_folders(lab, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  inspect = ['inspect', '--config=lm:smoke', '--config.model.mask=causal & strided(2)']
  assert cli.main(inspect) == 2 and "'strided', which masks does not have" in capsys.readouterr().err
  assert cli.main([*inspect, f'--variants={lab}']) == 0
  assert "model.mask = 'causal & strided(2)'" in capsys.readouterr().out
  launch = ['launch', 'slurm', '--config=lm:smoke', '--workdir=x', '--nodes=1', '--variants=lab']
  assert cli.main(launch) == 0 and '--variants=lab' in capsys.readouterr().out
  assert cli.main(['configs', '--variants=nowhere']) == 2


@pytest.mark.slow
def test_arms_record_their_own_variants_only(lab, tiny, tmp_path):
  """Runs of one process: the first uses the variant, the second does not."""
  variant_folders.add_folder(lab)
  for name, mask in (('first', 'causal & strided(2)'), ('second', 'causal')):
    config = tiny(**{'model.mask': mask, 'training.steps': 2})
    train_ensemble([RunDir.from_config(config, seed, tmp_path / name / str(seed)) for seed in (0, 1)])
  for seed in '01':
    assert load.checkpoint_metadata(tmp_path / 'first' / seed)['variants'] == {'masks/strided': str(lab)}
    assert json.dumps(load.checkpoint_metadata(tmp_path / 'second' / seed)['variants']) == '{}'


PLAIN = """import flax.linen as nn

from tfm.feed_forwards.protocol import FeedForward


class Plain(FeedForward):
  @nn.compact
  def __call__(self, x, valid):
    return nn.Dense(self.width)(x)
"""


def test_a_variant_of_plain_flax_without_a_docstring(tmp_path, capsys):
  (tmp_path / 'feed_forwards').mkdir()
  (tmp_path / 'feed_forwards' / 'plain.py').write_text(PLAIN)
  words = '--config=lm:smoke', '--config.model.feed_forward=plain', f'--variants={tmp_path}'
  assert cli.main(['train', *words, f'--workdir={tmp_path / "run"}']) == 2
  sentence = 'tfm train: the parameter stack/layers/block_0/feed_forward/Dense_0/bias has no logical axes, '
  assert sentence in capsys.readouterr().err
  assert variant_catalogue.Variant('feed_forward', 'plain').summary == ''
