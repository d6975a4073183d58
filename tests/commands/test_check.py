"""`tfm check`: the suite on one file, inside and outside the package; what fails is named."""

import os
import subprocess
import sys

import pytest

from tfm import variant_folders
from tfm.commands import check, cli


MASK = '''"""Every nth token."""

import dataclasses

from tfm.masks.protocol import Mask


@dataclasses.dataclass(frozen=True)
class Strided(Mask):
  """(q - k) divisible by step."""

  examples = ('strided(2)',)
  relative = True

  step: int

  def __call__(self, q, k):
    return {condition}
'''


def write_mask(folder, condition):
  (folder / 'masks').mkdir(parents=True)
  (folder / 'masks' / 'strided.py').write_text(MASK.format(condition=condition))
  return folder / 'masks' / 'strided.py'


def run_check(*words):
  """Exit status and output of the command in a new process, without the options of this run of pytest."""
  process = subprocess.run(
    [sys.executable, '-m', 'tfm', 'check', *map(str, words)],
    capture_output=True,
    text=True,
    env={name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'},
  )
  return process.returncode, process.stdout + process.stderr


@pytest.mark.slow
def test_a_variant_outside_the_package_passes(tmp_path):
  status, output = run_check(write_mask(tmp_path / 'lab', '(q - k) % self.step == 0'), '--quick')
  assert status == 0 and ' passed' in output and 'failed' not in output, output
  # Tests of masks, of causality, decoding and packing of models with it, and of kernels.
  assert int(output.rpartition(' passed')[0].split()[-1]) > 30, output


@pytest.mark.slow
def test_what_is_wrong_with_a_variant_is_said_in_its_terms(tmp_path):
  status, output = run_check(write_mask(tmp_path / 'lab', '(k <= q) & (k % self.step == 0)'), '--quick')
  assert status == 1
  assert 'strided(2): relative=True, but query 0 sees key 0 only where positions start at 0, not 1' in output


MIXER = '''"""A running mean."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.mixers.protocol import Mixer


class Average(Mixer):
  """The mean of the inputs so far."""

  supports_decoding = False
  supported_masks = ('causal',)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    return {mean}, cache
'''


@pytest.mark.slow
@pytest.mark.parametrize(
  'mean, file, sentence',
  [
    ('x.mean(1) * x[:, :, :3]', 'test_examples.py', '    return x.mean(1) * x[:, :, :3], cache'),
    ('jnp.cumsum(x, 1)[:, ::-1]', 'test_causality.py', 'output 0 depends on input 1'),
  ],
  ids=['shape', 'leak'],
)
def test_one_mistake_fails_few_cases(tmp_path, mean, file, sentence):
  path = tmp_path / 'lab' / 'mixers' / 'average.py'
  path.parent.mkdir(parents=True)
  path.write_text(MIXER.format(mean=mean))
  status, output = run_check(path, '--quick')
  assert status == 1 and sentence in output and 'more cases build on these' in output, output
  assert {line.partition('::')[0].rpartition('/')[2] for line in output.splitlines() if '::' in line} == {
    file
  }
  # Warnings of others, which the environment of the tests turns on, have their files.
  failures = output.partition('warnings summary')[0]
  assert output.count('FAILED') <= 2 and 'site-packages' not in failures, output


@pytest.mark.slow
def test_a_file_of_the_package_is_checked_too(root):
  status, output = run_check(root / 'tfm' / 'norms' / 'rmsnorm.py', '--quick')
  assert status == 0 and ' passed' in output, output


@pytest.mark.parametrize(
  'file, sentence',
  [
    ('lab/masks/nowhere.py', 'lab/masks/nowhere.py is no Python file; name that of a variant'),
    ('lab/position/mine.py', 'mine.py is in no folder of a slot; move it into one of data/packing, '),
    ('lab/masks/_shared.py', '_shared.py is no variant: its name is that of no spec; rename it'),
    ('lab/masks/protocol.py', 'protocol.py is no variant'),
    ('lab/masks/my-mask.py', 'my-mask.py is no variant'),
    ('lab/masks/mine.py', 'lab/masks/mine.py defines no public class; a variant is one, derived from'),
  ],
)
def test_what_is_no_variant_is_refused(tmp_path, monkeypatch, capsys, file, sentence):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(variant_folders, '_origins', {})
  path = tmp_path / file
  path.parent.mkdir(parents=True)
  if 'nowhere' not in file:
    path.touch()
  assert cli.main(['check', file]) == 2
  assert sentence in capsys.readouterr().err and not variant_folders.folders()


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('class Causal:', 'causal.py cannot be read as a variant: IndentationError: expected an indented block'),
    ('class Causal: ...', 'has masks/causal.py, and so has '),
  ],
)
def test_a_file_of_other_text_or_of_a_taken_name_is_refused(tmp_path, monkeypatch, capsys, text, sentence):
  monkeypatch.setattr(variant_folders, '_origins', {})
  path = tmp_path / 'lab/masks/causal.py'
  path.parent.mkdir(parents=True)
  path.write_text(text, encoding='utf-8')
  assert cli.main(['check', str(path)]) == 2
  assert sentence in capsys.readouterr().err and not variant_folders.folders()


def test_the_folder_of_a_nested_slot(tmp_path):
  assert check.find_folder(tmp_path / 'data' / 'sources' / 'mine.py') == tmp_path
  assert check.find_folder(tmp_path / 'masks' / 'mine.py') == tmp_path
