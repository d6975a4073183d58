"""What `tfm launch gke` prints, given to the real xpk, and what the pods would run, run by bash.

xpk is looked for on the PATH, or where `make launch` installs it; all that is left out is `kubectl apply` of
the manifest.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
import yaml

from tests.launch.test_launch import JOBS, STUDIES
from tfm.commands import cli


INSTALLED = pathlib.Path(__file__).parents[2] / '.venv-xpk' / 'bin' / 'xpk'
XPK = shutil.which('xpk') or (str(INSTALLED) if INSTALLED.exists() else None)
# A `tfm` that notes its arguments, and ends as $STATUSES says, one word a call; 'wait': at SIGTERM, with 0.
TFM = """#!/bin/bash
printf '%s\\n' "$*" >> {folder}/calls
read -r -a statuses < {folder}/statuses
status=${{statuses[$(($(wc -l < {folder}/calls) - 1))]}}
if [ "$status" != wait ]; then exit "$status"; fi
trap 'exit 0' TERM
while :; do sleep 0.1; done
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not XPK, reason='needs xpk, which `make launch` installs')]


def create_manifests(words, folder, capsys, root, monkeypatch):
  """The manifests of the workloads that the printed text creates."""
  monkeypatch.chdir(root)
  assert cli.main(['launch', *words]) == 0
  printed, program = capsys.readouterr().out, folder / 'xpk'
  # Only workloads: attaching a storage needs a cluster, also in a dry run.
  program.write_text(
    f"""#!/bin/bash
if [ "$1" = workload ]; then
  exec {XPK} "$@" --dry-run --skip-validation --zone=my-zone-a --project=my-project \\
    --output-manifest-file="{folder}/$RANDOM$RANDOM.yaml"
fi
""",
    encoding='utf-8',
  )
  program.chmod(0o755)
  env = os.environ | dict(PATH=f'{folder}:{os.environ["PATH"]}', HOME=str(folder))
  done = subprocess.run(['bash', '-c', printed], env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stdout + done.stderr
  return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob('*.yaml'))]


def find_containers(manifest):
  [job] = manifest['spec']['replicatedJobs']
  pod = job['template']['spec']['template']['spec']
  [container] = pod['containers']
  return job, pod, container


@pytest.fixture
def pod(tmp_path, capsys, root, monkeypatch):
  """(statuses with which `tfm` ends, one after another) → the started shell of a pod, with its folder."""
  words = [*JOBS['gke'], "--config.data.source=text('it''s {a} $HOME \\\\.txt')"]
  [manifest] = create_manifests(words, tmp_path, capsys, root, monkeypatch)
  *shell, script = find_containers(manifest)[2]['command']
  program = tmp_path / 'tfm'
  program.write_text(TFM.format(folder=tmp_path))
  program.chmod(0o755)
  (tmp_path / 'sleep').write_text('#!/bin/sh\nexec /bin/sleep 0.1\n')  # no need to wait seconds
  (tmp_path / 'sleep').chmod(0o755)

  def start(*statuses):
    (tmp_path / 'statuses').write_text(' '.join(map(str, statuses)) + '\n')
    env = dict(os.environ, PATH=f'{tmp_path}:{os.environ["PATH"]}')
    return subprocess.Popen([*shell, script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

  start.calls = lambda: (tmp_path / 'calls').read_text().splitlines() if (tmp_path / 'calls').exists() else []
  return start


def test_xpk_makes_one_job_set_of_a_run(tmp_path, capsys, root, monkeypatch):
  [manifest] = create_manifests(JOBS['gke'], tmp_path, capsys, root, monkeypatch)
  job, pod, container = find_containers(manifest)
  assert manifest['kind'] == 'JobSet' and manifest['metadata']['name'] == 'lm-1'
  assert manifest['spec']['failurePolicy']['maxRestarts'] == 100
  assert job['replicas'] == 2 and job['template']['spec']['parallelism'] == 64  # v5e-256: 64 hosts of 4 chips
  assert pod['terminationGracePeriodSeconds'] == 120 and container['image'] == 'my-image'
  [rule] = job['template']['spec']['podFailurePolicy']['rules']
  statuses = rule['onExitCodes']
  # A stop restarts all pods; invalid input, or to give up, does not.
  assert statuses['operator'] == 'NotIn' and rule['action'] == 'FailJob'
  assert 143 in statuses['values'] and not {1, 2, 75} & set(statuses['values'])


def test_xpk_makes_a_job_set_of_each_task_of_a_study(tmp_path, capsys, root, monkeypatch):
  manifests = create_manifests(STUDIES['gke_study'], tmp_path, capsys, root, monkeypatch)
  assert sorted(manifest['metadata']['name'] for manifest in manifests) == [f'position-{i}' for i in range(3)]


def test_a_pod_runs_the_arguments_of_the_command_line(pod):
  assert pod(0).wait(30) == 0
  [call] = pod.calls()
  assert "--config.data.source=text('it''s {a} $HOME \\\\.txt')" in call and call.startswith(
    'train --processes=auto'
  )


def test_a_stopped_pod_saves_and_does_not_count_as_finished(pod):
  shell = pod('wait')
  while not pod.calls():
    time.sleep(0.1)
  shell.send_signal(signal.SIGTERM)
  assert shell.wait(30) == 143 and len(pod.calls()) == 1


@pytest.mark.parametrize('statuses, end', [([75, 134, 0], 0), ([2], 2), ([134] * 9, 1)])
def test_a_pod_tries_again_or_gives_up(pod, statuses, end):
  assert pod(*statuses).wait(60) == end
  assert len(pod.calls()) == min(len(statuses), 5)
