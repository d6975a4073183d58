"""Launch commands: golden text, quotation and invalid input."""

import os
import pathlib
import shlex
import subprocess

import pytest

from tests.launch.command import tfm
from tfm.runs.train import train


GOLDEN = pathlib.Path(__file__).parent.parent / 'golden' / 'launch'
CONFIG = ['--config=configs/lm.py', '--config.model.layers=12', '--config.data.source=text("plays/*.txt")']
JOBS = {
  'slurm': [
    'slurm',
    *CONFIG,
    '--workdir=runs/lm',
    '--nodes=4',
    '--gres=gpu:8',
    '--ntasks-per-node=8',
    '--time=24:00:00',
    '--env=XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true',
    '--directory=/home/me/my work',
  ],
  'tpu': [
    'tpu',
    *CONFIG,
    '--workdir=gs://my-bucket/runs/lm',
    '--name=my-pod',
    '--zone=my-zone',
    '--project=my-project',
  ],
  'tpu_folder': ['tpu', *CONFIG, '--workdir=/nfs/runs/lm', '--name=my-pod', '--zone=my-zone'],
  'tpu_created': [
    'tpu',
    *CONFIG,
    '--workdir=gs://my-bucket/runs/lm',
    '--name=my-pod',
    '--zone=my-zone',
    '--accelerator-type=v5litepod-16',
    '--runtime-version=v2-alpha-tpuv5-lite',
    '--spot',
    '--setup=pip install tfm',
  ],
  'gke': [
    'gke',
    *CONFIG,
    '--config.training.batch_size=512',
    '--workdir=gs://my-bucket/runs/lm',
    '--name=lm-1',
    '--cluster=my-cluster',
    '--tpu-type=v5litepod-256',
    '--num-slices=2',
    '--docker-image=my-image',
    '--env=TFM_CACHE=/cache',
  ],
}
STUDY = ['--study=experiments/position.py:demo', '--slices=3', '--config.training.steps=50']
STUDIES = {
  'slurm_study': [
    'slurm',
    *STUDY,
    '--workdir=runs/my study',
    '--name=position',
    '--partition=gpu',
    '--gres=gpu:1',
  ],
  'gke_study': [
    'gke',
    *STUDY,
    '--workdir=gs://my-bucket/runs/position',
    '--cluster=my-cluster',
    '--tpu-type=v5litepod-8',
    '--docker-image=my-image',
  ],
}

SERVE = ['kubernetes', '--serve', '--docker-image=my-image', '--cpu=4', '--memory=8Gi']
SERVED = {
  'kubernetes': [
    *SERVE,
    '--workdir=/models/lm',
    '--volume-claim=models',
    '--max-replicas=4',
    '--rows=16',
    '--grace=60',
    '--config.model.kernel=dense',
  ],
  'kubernetes_bucket': [
    *SERVE,
    '--workdir=gs://my-bucket/runs/lm',
    '--name=chat',
    '--namespace=models',
    '--gpus=1',
    '--replicas=2',
    "--env=XLA_FLAGS=it's",
    '--setup=pip install tfm',
  ],
}


@pytest.mark.parametrize('name', JOBS | STUDIES | SERVED)
def test_printed_commands_match_the_golden_text(name, capsys, root, monkeypatch, request):
  monkeypatch.chdir(root)
  status, out, err = tfm(capsys, 'launch', *(JOBS | STUDIES | SERVED)[name])
  assert status == 0, err
  file = GOLDEN / f'{name}.txt'
  if request.config.getoption('--update-golden'):
    file.parent.mkdir(exist_ok=True)
    file.write_text(out)
  assert out == file.read_text(), 'the printed commands changed; if intended, run with --update-golden'


@pytest.mark.parametrize('name', JOBS)
def test_printed_commands_are_valid_shell_and_keep_every_argument(name, capsys, root, monkeypatch):
  """Unquoted level by level, the innermost command is `tfm train` with the arguments of the command line."""
  monkeypatch.chdir(root)
  text = tfm(capsys, 'launch', *JOBS[name])[1]
  assert not subprocess.run(['bash', '-n'], input=text, text=True, capture_output=True, check=True).stderr
  while '--processes=auto' not in (words := split_words(text)):
    text = max((word for word in words if '--processes=auto' in word), key=len).removeprefix('--command=')
  assert {'tfm', 'train', *CONFIG} <= set(words)


def split_words(text):
  if not text.startswith("bash -c $'"):  # a quotation of bash, which shlex does not know
    return shlex.split(text, comments=True)
  return subprocess.check_output(['bash', '-c', f"printf '%s\\0' {text}"], text=True).split('\0')


def run_with_fake_programs(text, folder, **variables):
  """The command lines with which a script calls `tfm` and `scontrol`."""
  for name in ('tfm', 'scontrol'):
    path = folder / name
    path.write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/calls\n')
    path.chmod(0o755)
  environment = os.environ | dict(PATH=f'{folder}:{os.environ["PATH"]}') | variables
  subprocess.run(['bash', '-c', text], env=environment, check=True, cwd=folder, timeout=60)
  return (folder / 'calls').read_text().splitlines()


def test_the_tasks_of_a_study_have_one_slice_each_and_the_report_comes_last(
  capsys, root, monkeypatch, tmp_path
):
  monkeypatch.chdir(root)
  array, report = tfm(capsys, 'launch', *STUDIES['slurm_study'])[1].split('\nsbatch --dependency')
  assert '#SBATCH --array=0-2\n' in array and report.startswith('=afterany:"${array%%;*}" <<')
  body = array.partition('sbatch --parsable')[2].split('\n', 1)[1].rsplit('\nEND', 1)[0]
  variables = dict(SLURM_ARRAY_JOB_ID='7', SLURM_ARRAY_TASK_ID='1')
  words = 'experiments/position.py:demo --config.training.steps=50 --workdir=runs/my study'
  assert run_with_fake_programs(body, tmp_path, **variables) == [f'tfm ablate {words} --slice=1/3']
  (tmp_path / 'calls').unlink()
  body = report.split('\n', 1)[1].split('\nEND\n', 1)[0]
  assert run_with_fake_programs(body, tmp_path) == [f'tfm ablate {words} --report']


@pytest.mark.parametrize(
  'argv, message',
  [
    (['slurm', *STUDY, '--workdir=x', '--array=0-9'], '--array is set by --slices=3'),
    (
      ['slurm', '--study=experiments/position.py:demo', '--workdir=x'],
      '--slices= must say into how many tasks',
    ),
    (['slurm', STUDY[0], '--slices=99', '--workdir=x'], '--slices=99 exceeds the 3 arms'),
    (['slurm', *CONFIG, '--workdir=x', '--nodes=0'], '--nodes=0 must be a number of nodes from 1 on'),
    (['slurm', *CONFIG, '--workdir=x', '--nodes=few'], '--nodes=few must be a number of nodes from 1 on'),
    (['slurm', *CONFIG, '--slices=2', '--workdir=x', '--nodes=1'], '--slices=2 divides the arms of a study'),
    (
      ['slurm', *STUDY, '--workdir=x', '--config.model.heads=5'],
      "the arm 'rope': config.model.heads=5 does not divide",
    ),
    (['tpu', *STUDY, '--workdir=/x', '--zone=z'], '--study is for slurm and gke'),
    (['slurm', *CONFIG, '--workdir=x'], '--nodes is missing'),
    (['slurm', *CONFIG, '--workdir=gs://b/x', '--nodes=2'], '--workdir=gs://b/x is a bucket'),
    (['tpu', *CONFIG, '--workdir=x'], '--zone is missing'),
    (['tpu', *CONFIG, '--workdir=x', '--zone=z', '--nodes=2'], '--nodes is not a flag of tfm launch tpu'),
    (['gke', *CONFIG, '--workdir=x', '--cluster=c'], '--tpu-type is missing'),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--config.model.heads=5'],
      'model.heads=5 does not divide',
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--config.model.mixer=softmx'],
      "config.model.mixer='softmx' names",
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--config.rules.vocab=tensr'],
      "config.rules.vocab='tensr' names",
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--config.optimizer.name=adamm'],
      "config.optimizer.name='adamm' names",
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--config.training.save_every=nonsense'],
      "config.training.save_every='nonsense' names",
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--config.lora.rank=4'],
      'set config.init_from to its folder',
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--ntasks-per-node=4', '--config.mesh.data=3'],
      'config.mesh: data=3 needs 3 devices and there are 8',
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--ntasks-per-node=4', '--config.mesh.tensor=4'],
      "config.mesh.tensor = 4 splits 'kv_heads' of the parameter",
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=1-2', '--config.mesh.data=3'],
      'config.training.batch_size=32 in 1 microbatches',
    ),
    (['slurm', *CONFIG, '--workdir=s3://b/x', '--nodes=2'], '--workdir=s3://b/x is not a folder'),
    (['slurm', *CONFIG, '--workdir=x', '--nodes'], '--nodes is missing'),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--signal=B:USR1@60'],
      '--signal=B:USR1@60 does not make the script save',
    ),
    (['tpu', *CONFIG, '--workdir=runs/lm', '--zone=z'], '--workdir=runs/lm is a relative path'),
    (['tpu', *CONFIG, '--workdir=gs://b/x', '--zone=z', '--spot'], '--accelerator-type is missing'),
    (
      [
        'tpu',
        *CONFIG,
        '--workdir=gs://b/x',
        '--zone=z',
        '--accelerator-type=v4-8',
        '--runtime-version=r',
        '--config.mesh.data=8',
      ],
      'config.mesh: data=8 needs 8 devices and there are 4',
    ),
    (
      [
        'gke',
        *CONFIG,
        '--workdir=gs://b/x',
        '--cluster=c',
        '--tpu-type=v5p-16',
        '--num-slices=2',
        '--docker-image=i',
        '--config.mesh.fsdp=16',
        '--config.mesh.data=1',
      ],
      'config.mesh.data=1 is not divisible by 2 slices',
    ),
    (
      [
        'gke',
        *CONFIG,
        '--workdir=gs://b/x',
        '--cluster=c',
        '--tpu-type=v6e-8',
        '--docker-image=i',
        '--name=Bad Name_1',
      ],
      '--name=Bad Name_1 must consist of lower-case letters',
    ),
    (['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--env=A'], '--env=A must be NAME=VALUE'),
    (['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--env=A;B=1'], '--env=A;B=… names no variable'),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--name=a\n#SBATCH --exclusive'],
      "--name='a\\n#SBATCH --exclusive' contains a line break",
    ),
    (
      ['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--partition=a\ndate'],
      "--partition='a\\ndate' contains a line break",
    ),
    (['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--a b=c'], '--a b is not a flag'),
    (['slurm', *CONFIG, '--workdir=x', '--nodes=2', '--run'], '--run needs sbatch, which is not on the PATH'),
  ],
)
def test_invalid_jobs_are_rejected(capsys, root, monkeypatch, argv, message):
  monkeypatch.chdir(root)
  monkeypatch.setenv('PATH', '')
  status, _, err = tfm(capsys, 'launch', *argv)
  assert status == 2 and message in err


@pytest.mark.parametrize(
  'flags, line',
  [
    (['--exclusive'], '#SBATCH --exclusive'),
    (['--signal=B:TERM@600'], '#SBATCH --signal=B:TERM@600'),
    (['--comment=two words # of it'], "#SBATCH '--comment=two words # of it'"),
    # Files and kernels of the target machines are not looked for on this one.
    (
      [
        '--config.model.kernel=cudnn',
        '--config.data.source=text("/nowhere/*.txt")',
        '--config.init_from=/nowhere',
      ],
      '#SBATCH --nodes=2',
    ),
    # A process on CPUs may simulate several devices.
    (
      ['--env=XLA_FLAGS=--xla_force_host_platform_device_count=4', '--config.mesh.data=8'],
      '#SBATCH --nodes=2',
    ),
  ],
)
def test_valid_jobs_are_accepted(capsys, root, monkeypatch, flags, line):
  monkeypatch.chdir(root)
  status, out, err = tfm(
    capsys, 'launch', 'slurm', '--config=configs/lm.py', '--workdir=x', '--nodes=2', *flags
  )
  assert status == 0 and line in out.splitlines(), err


def test_no_argument_ends_the_printed_text_early(capsys, root, monkeypatch):
  """A variable's value may contain the word that ends the text, on a line of its own."""
  monkeypatch.chdir(root)
  value = 'a\nEND\nfalse'
  out = tfm(
    capsys, 'launch', 'slurm', '--config=configs/lm.py', '--workdir=x', '--nodes=2', f'--env=A={value}'
  )[1]
  words = ['bash', '-c', f'sbatch() {{ cat; }}\n{out}']
  script = subprocess.run(words, text=True, capture_output=True, check=True).stdout
  assert script.endswith('exit "$status"\n') and f"export A='{value}'" in script


def test_a_bucket_is_not_a_workdir_of_train(tiny):
  with pytest.raises(ValueError, match='--workdir=gs:/bucket/run is not a folder; mount'):
    train(tiny(), 'gs://bucket/run')
