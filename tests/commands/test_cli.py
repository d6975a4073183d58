"""The console script: help of every command, error messages of one sentence, and a complete first run."""

import errno
import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from tfm.commands import cli


def tfm(capsys, *argv):
  """Runs a command in this process and returns exit status, stdout and stderr."""
  status = cli.main(argv)
  out, err = capsys.readouterr()
  return status, out, err


def test_help_lists_every_command(capsys):
  status, out, _ = tfm(capsys, '--help')
  assert status == 0 and cli.command_names()
  assert all(f'\n  {name} ' in out for name in cli.command_names())


def test_the_version(capsys):
  assert tfm(capsys, '--version') == (0, f'tfm {importlib.metadata.version("tfm")}\n', '')


@pytest.mark.parametrize('name', cli.command_names())
def test_every_command_has_help(capsys, name):
  with pytest.raises(SystemExit) as end:
    cli.main([name, '--help'])
  out = capsys.readouterr().out
  assert end.value.code == 0 and f'usage: tfm {name}' in out


@pytest.mark.slow
def test_python_m_tfm_runs_the_console_script():
  process = subprocess.run(
    [sys.executable, '-m', 'tfm', '--help'], capture_output=True, text=True, check=True
  )
  assert 'train' in process.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'words, expected',
  [
    (['--help'], 1),
    (['train', '--help'], 0),  # argparse ignores it
    (['configs'], 1),
    (['inspect', 'causal', '--config.data.length=4'], 1),
  ],
)
def test_a_reader_that_has_gone_ends_a_command_without_a_word(words, expected):
  """As in `tfm … | head -1`."""
  read, write = os.pipe()
  os.close(read)
  # JAX itself opens files without an encoding.
  env = {name: value for name, value in os.environ.items() if name != 'PYTHONWARNDEFAULTENCODING'}
  with open(write, 'wb') as stdout:
    process = subprocess.run(
      [sys.executable, '-m', 'tfm', *words], stdout=stdout, stderr=subprocess.PIPE, text=True, env=env
    )
  assert (process.returncode, process.stderr) == (expected, '')


def test_another_broken_pipe_is_reported(capfd, monkeypatch):
  def fail(folder):
    raise BrokenPipeError(errno.EPIPE, 'a connection')

  monkeypatch.setattr('tfm.runs.summary.summarize_runs', fail)
  assert tfm(capfd, 'runs') == (2, '', 'tfm runs: [Errno 32] a connection\n')


def test_an_error_of_the_system_names_its_file_first(capfd, monkeypatch):
  def fail(folder):
    raise PermissionError(errno.EACCES, 'Permission denied', '/data/a')

  monkeypatch.setattr('tfm.runs.summary.summarize_runs', fail)
  sentence = 'tfm runs: /data/a cannot be used: Permission denied; check the path and its permissions\n'
  assert tfm(capfd, 'runs') == (2, '', sentence)


def test_a_long_word_is_abridged(capfd):
  status, _, err = tfm(capfd, 'x' * 100_000)
  assert status == 2 and len(err) < 3000 and 'is not a command' in err


def test_the_value_of_a_field_may_have_spaces(capsys):
  """Wherever it stands: it is not the argument of the command."""
  for words in (['--config.model.mask=causal & window(7)'], ['--config.model.mask', 'causal & window(7)']):
    status, out, _ = tfm(capsys, 'inspect', *words, '--config=lm:smoke')
    assert status == 0 and "model.mask = 'causal & window(7)'\n" in out


@pytest.mark.parametrize(
  'argv, pattern',
  [
    (['trian'], "'trian' is not a command; known: .*did you mean 'train'"),
    (['evaluate', '--workdir=nowhere'], 'nowhere.*holds no run'),
    (
      ['evaluate', '--workdir=nowhere', '--spilt=test'],
      "'--spilt=test' is not a flag.*did you mean '--split'",
    ),
    (['train', '--config=lm:smoke', '--workdri=x'], "'--workdri=x' is not a flag.*did you mean '--workdir'"),
    (['train', '--config=missing.py', '--workdir=x'], 'missing.py is no file'),
    (
      ['train', '--config=configs/lm.py', '--workdir=x', '--config.model.layer=3'],
      "config.model.layer='3'.*did you mean 'layers'",
    ),
    (
      ['train', '--config=configs/lm.py', '--workdir=x', '--config.model.heads=5'],
      'model.heads=5 does not divide .*model.width=384',
    ),
    (
      ['train', '--config=configs/lm.py', '--workdir=x', '--config.model.position=roep'],
      "config.model.position='roep'.*did you mean 'rope'",
    ),
    (
      ['train', '--config=configs/lm.py', '--workdir=x', '--config.data.source=text("nothing/*.txt")'],
      'nothing/\\*.txt',
    ),
    (['train', '--config=configs/lm.py:huge', '--workdir=x'], "'huge'"),
    (['train', '--config=configs/lm.py', '--workdir='], '--workdir= is empty .*; name a folder'),
    (['generate', '--workdir='], '--workdir= is empty'),
  ],
)
def test_errors_are_one_sentence(capsys, root, monkeypatch, argv, pattern):
  import re

  monkeypatch.chdir(root)
  monkeypatch.delenv('TFM_TRACEBACK', raising=False)
  status, out, err = tfm(capsys, *argv)
  assert status == 2 and out == ''
  assert re.search(pattern, err), err
  assert err.startswith(f'tfm {argv[0]}: ') and len(err.strip().splitlines()) == 1
  assert not (root / 'x').exists()


def test_train_evaluate_generate_and_resume_on_own_files(capsys, root, monkeypatch, book, tmp_path):
  """The commands of a first run in an empty directory, and the errors of a resume with changed data."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'plays').mkdir()
  (tmp_path / 'plays' / 'one.txt').write_text(book.read_text())
  train = [
    'train',
    f'--config={root}/configs/lm.py',
    '--workdir=run',
    '--config.data.source=text("plays/*.txt")',
    '--config.data.tokenizer=char',
    '--config.model.layers=2',
    '--config.model.width=32',
    '--config.model.heads=4',
    '--config.data.length=32',
    '--config.training.batch_size=8',
    '--config.training.evaluate_every=10',
    '--config.training.evaluation_batches=2',
    '--config.optimizer.schedule=constant',
  ]
  status, _, err = tfm(capsys, *train, '--config.training.steps=20')
  assert status == 0, err
  status, out, _ = tfm(capsys, 'evaluate', '--workdir=run', '--step=best', '--split=test')
  values = json.loads(out)
  assert status == 0 and {'loss', 'perplexity', 'bits_per_byte', 'accuracy', 'tokens'} <= values.keys()
  evaluate = ['evaluate', '--workdir=run', '--step=best', '--split=test']
  status, out, _ = tfm(capsys, *evaluate, '--config.model.kernel=chunked')
  assert status == 0 and json.loads(out)['loss'] == pytest.approx(values['loss'], rel=1e-5)
  status, _, err = tfm(capsys, *evaluate, '--config.model.width=64')
  assert (
    status == 2
    and '--config.model.width cannot be set for a trained run; only kernels and the mesh can' in err
  )
  status, _, err = tfm(capsys, *evaluate, '--config.model.kernel=splash')
  assert status == 2 and "kernel='splash' of the run cannot be used here: it runs on tpu" in err
  status, out, _ = tfm(
    capsys, 'generate', '--workdir=run', '--prompt=Verse', '--max_tokens=5', '--temperature=0'
  )
  assert status == 0 and out.startswith('Verse')
  # With a constant schedule a run can be extended.
  status, _, err = tfm(capsys, *train, '--config.training.steps=30')
  assert status == 0 and 'resuming from step 20' in err
  status, _, err = tfm(capsys, *train, '--config.training.steps=30', '--config.data.length=16')
  assert 'note: --config.data.length is given more than once; the last one counts' in err
  assert status == 2 and 'data.length: 32 → 16' in err
  (tmp_path / 'plays' / 'two.txt').write_text('Another play altogether.\n' * 50)
  status, _, err = tfm(capsys, *train, '--config.training.steps=40')
  assert status == 2 and 'holds other data' in err


def test_overrides_of_a_run_are_those_of_its_config_in_a_folder_of_any_name(tmp_path):
  folder = tmp_path / 'a+b:smoke,c'
  folder.mkdir()
  cli.validate_run_overrides(str(folder), ['--config.model.kernel=dense'])  # it may have no config.json
  (folder / 'config.json').write_text('{"model": {"blocks": {"own": {}}}}')
  cli.validate_run_overrides(str(folder), ['--config.model.blocks.own.kernel=dense'])
  with pytest.raises(ValueError, match='other.kernel=.dense. is not a field; .*known: own'):
    cli.validate_run_overrides(str(folder), ['--config.model.blocks.other.kernel=dense'])
