"""Launch commands: golden text, invalid input, and the Slurm file run for real with two tasks on loopback."""

import json
import os
import pathlib
import re
import shlex
import signal
import stat
import subprocess
import sys
import time

import pytest

from tfm.commands import cli
from tfm.launch.job import Step, checkpoints_of_run, restart_loop, run_steps
from tfm.runs.train import train
from tfm.training import metrics


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


def tfm(capsys, *argv):
  status = cli.main(argv)
  out, err = capsys.readouterr()
  return status, out, err


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
    (['slurm', *STUDY, '--slices=99', '--workdir=x'], '--slices=99 exceeds the 4 arms'),
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


# A fake gcloud whose TPU VM is a folder, from create to delete; training in the first VM loses the machine.
GCLOUD = """#!/bin/bash
echo "${@:3:2}" >> "$FAKE/calls"
case "$3 $4" in
  'queued-resources describe') cat "$FAKE/state" ;;
  'queued-resources create') mkdir "$FAKE/vm"; echo ACTIVE > "$FAKE/state" ;;
  'queued-resources delete') rm -r "$FAKE/vm" "$FAKE/state" ;;
  'tpu-vm ssh') cd "$FAKE/vm" && HOME=$FAKE/vm bash -c "$(sed '1s/^--command=//' <<< "${@: -1}")" ;;
esac
"""
PREEMPTED_ONCE = """#!/bin/bash
echo "$@" >> "$FAKE/trained"
[ $(wc -l < "$FAKE/trained") = 2 ] || { echo SUSPENDED > "$FAKE/state"; kill -9 $PPID; }
"""


def test_a_preempted_slice_is_created_again(capsys, tmp_path, root, monkeypatch):
  """Runs the printed loop with a fake gcloud that has one machine."""
  monkeypatch.chdir(root)
  text = tfm(
    capsys,
    'launch',
    'tpu',
    '--config=configs/lm.py',
    '--workdir=/nfs/lm',
    '--name=pod',
    '--zone=z',
    '--accelerator-type=v5litepod-16',
    '--runtime-version=r',
    '--setup=echo installed >> "$FAKE/setup"',
  )[1]
  programs = tmp_path / 'bin'
  programs.mkdir()
  for name, program in {
    'gcloud': GCLOUD,
    'tfm': PREEMPTED_ONCE,
    'sleep': '#!/bin/sh\nexec /bin/sleep 0.2\n',
  }.items():
    (programs / name).write_text(program)
    (programs / name).chmod(0o755)
  loop = re.match(r"# [^\n]*\nbash <<'END'\n(.*?)END\n\n", text, re.DOTALL)[1]
  done = subprocess.run(
    ['bash'],
    input=loop,
    text=True,
    timeout=60,
    env=dict(os.environ, PATH=f'{programs}:{os.environ["PATH"]}', FAKE=str(tmp_path)),
  )
  assert done.returncode == 0
  verbs = [line.split()[1] for line in (tmp_path / 'calls').read_text().splitlines() if 'queued' in line]
  assert [verb for verb in verbs if verb != 'describe'] == ['create', 'delete', 'create']
  assert (
    tmp_path / 'trained'
  ).read_text() == 2 * 'train --processes=auto --workdir=/nfs/lm --config=configs/lm.py\n'
  assert (tmp_path / 'setup').read_text() == 'installed\ninstalled\n'


def run_loop(tmp_path, program, sleep='#!/bin/sh\n'):
  """Runs the restart loop of a command; returns its exit status and what it printed."""
  for name, text in {'work': program, 'sleep': sleep}.items():
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(0o755)
  env = dict(os.environ, PATH=f'{tmp_path}:{os.environ["PATH"]}', RUN=str(tmp_path / 'run'))
  words = ['bash', '-c', restart_loop('work', checkpoints_of_run(shlex.quote(str(tmp_path / 'run'))))]
  done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
  return done.returncode, done.stdout, done.stderr


def test_a_command_that_always_fails_is_given_up(tmp_path):
  status, out, err = run_loop(tmp_path, '#!/bin/sh\necho tried\nexit 9\n')
  assert status == 9 and out == 5 * 'tried\n'
  assert err.splitlines()[-1] == 'tfm launch: 5 failures in a row without a new checkpoint; giving up'


def test_a_command_that_saves_before_it_fails_is_run_on(tmp_path):
  """Twelve failures, each after a new checkpoint; then a success."""
  program = '#!/bin/sh\nmkdir -p "$RUN/checkpoints/$$"\n[ $(ls "$RUN/checkpoints" | wc -l) = 13 ]\n'
  status, _, err = run_loop(tmp_path, program)
  assert status == 0 and err.count('restarting from the last checkpoint') == 12


def test_a_stop_between_two_tries_ends_the_loop_as_a_saved_stop(tmp_path):
  """SIGTERM comes while the loop waits after a failure."""
  stop = '#!/bin/sh\nkill -TERM "$PPID"\n'
  status, out, _ = run_loop(tmp_path, '#!/bin/sh\necho tried\nexit 9\n', sleep=stop)
  assert (status, out) == (0, 'tried\n')


def test_invalid_input_is_not_tried_again(tmp_path):
  assert run_loop(tmp_path, '#!/bin/sh\necho tried\nexit 2\n')[:2] == (2, 'tried\n')


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


def test_run_runs_the_steps_in_order(tmp_path):
  """Runs a program that records its arguments and standard input."""
  program = tmp_path / 'record'
  program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls; cat >> {tmp_path}/calls; [ "$1" != fail ]\n')
  program.chmod(program.stat().st_mode | stat.S_IEXEC)
  run_steps([Step((str(program), 'one'), 'text\n'), Step((str(program), 'two words'))], lambda name: name)
  assert (tmp_path / 'calls').read_text() == 'one\ntext\ntwo words\n'
  with pytest.raises(ValueError, match='failed with exit status 1'):
    run_steps([Step((str(program), 'fail'))], lambda name: name)


def test_a_bucket_is_not_a_workdir_of_train(tiny):
  with pytest.raises(ValueError, match='--workdir=gs:/bucket/run is not a folder; mount'):
    train(tiny(), 'gs://bucket/run')


# Slurm's part for a batch file on one machine: two tasks, each with its number. As the real one (src/srun/
# signals.c of Slurm 22.05: launch_fwd_signal with SIGKILL), srun answers a SIGTERM by killing its tasks.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo step >> "$FAKE/steps"
trap 'kill -KILL "${tasks[@]}" 2>/dev/null' TERM
for task in 0 1; do
  export SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1
  export SLURM_STEP_NODELIST=localhost
  "$@" 2> "$FAKE/task$task" &
  tasks[task]=$!
done
echo "${tasks[@]}" > "$FAKE/tasks"
status=0
for task in "${tasks[@]}"; do
  wait "$task"; one=$?
  while kill -0 "$task" 2>/dev/null; do wait "$task"; one=$?; done
  [ $one = 0 ] || status=$one
done
exit $status
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch, book, root):
  """Runs a batch file under a fake Slurm; returns its process."""
  programs = tmp_path / 'bin'
  programs.mkdir()
  for name, text in {
    'srun': SRUN,
    'scancel': '#!/bin/sh\nkill "$(echo "$1" | sed s/--signal=/-/)" $(cat "$FAKE/tasks")\n',
    'scontrol': '#!/bin/sh\necho "$@" >> "$FAKE/requeued"\n',
    'tfm': f'#!/bin/sh\nexec {sys.executable} -m tfm "$@"\n',
  }.items():
    (programs / name).write_text(text)
    (programs / name).chmod(0o755)
  config = tmp_path / 'small.py'
  config.write_text(f"""
from ml_collections import ConfigDict

def get_config(arg=''):
  return ConfigDict(dict(
    data=dict(source="text({str(book)!r})", length=32),
    model=dict(layers=2, width=32, heads=4),
    optimizer=dict(warmup=2),
    training=dict(steps=40, batch_size=8, log_every=1, evaluate_every=10, evaluation_batches=1)))
""")
  job = 90_000 + os.getpid() % 4096  # the port of the coordinator follows from it
  env = dict(
    os.environ,
    PATH=f'{programs}:{os.environ["PATH"]}',
    FAKE=str(tmp_path),
    SLURM_JOB_ID=str(job),
    PYTHONPATH=f'{root}:{os.environ.get("PYTHONPATH", "")}',
    XLA_FLAGS=f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=2',
  )

  def submit(capsys):
    monkeypatch.chdir(root)
    status, out, err = tfm(
      capsys, 'launch', 'slurm', f'--config={config}', f'--workdir={tmp_path}/run', '--nodes=2'
    )
    assert status == 0, err
    text = re.fullmatch(r"sbatch <<'END'\n(.*)END\n\n", out, re.DOTALL)[1]
    (tmp_path / 'job.sh').write_text(text)
    return subprocess.Popen(['bash', tmp_path / 'job.sh'], env=env, text=True, stderr=subprocess.PIPE)

  return submit


def rows(tmp_path):
  return [row for row in metrics.read(tmp_path / 'run' / 'metrics.jsonl') if row['split'] == 'train']


@pytest.mark.slow
def test_slurm_job_resumes_after_a_lost_process_and_is_requeued_after_preemption(cluster, capsys, tmp_path):
  def wait_for(step, job):
    deadline = time.time() + 300
    while not any(row['step'] >= step for row in rows(tmp_path)):
      assert job.poll() is None and time.time() < deadline, [
        path.read_text() for path in tmp_path.glob('task*')
      ]
      time.sleep(0.01)

  def tasks():
    pids = subprocess.run(['pgrep', '-f', f'{tmp_path}/run'], capture_output=True, text=True).stdout.split()
    return [
      int(pid)
      for pid in pids
      if b'--processes=auto' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
      and b'-m\0tfm' in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    ]

  job = cluster(capsys)
  wait_for(12, job)
  os.kill(tasks()[1], signal.SIGKILL)  # a machine is lost
  wait_for(22, job)
  assert (tmp_path / 'steps').read_text() == 'step\nstep\n'
  job.send_signal(signal.SIGTERM)  # the job is preempted
  _, err = job.communicate(timeout=120)
  assert job.returncode == 0 and 'restarting from the last checkpoint' in err, err
  assert re.fullmatch(r'requeue \d+\n', (tmp_path / 'requeued').read_text())
  reached = rows(tmp_path)[-1]['step']
  assert reached < 40 and (tmp_path / 'run' / 'checkpoints' / str(reached)).is_dir()
  job = cluster(capsys)  # the requeued job
  _, err = job.communicate(timeout=300)
  assert job.returncode == 0, err
  assert [row['step'] for row in rows(tmp_path)] == list(range(1, 41))
  assert 'devices: 2 processes, 4 × cpu' in (tmp_path / 'run' / 'log.txt').read_text()
  seconds = json.loads((tmp_path / 'run' / 'goodput.json').read_text())['seconds']
  assert seconds['lost'] > 0 and seconds['productive'] > 0
