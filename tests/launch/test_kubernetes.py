"""What `tfm launch kubernetes` prints: valid by Kubernetes' schemas, and a command that tfm serve takes."""

import shlex

import pytest
import yaml

from tests.launch.command import tfm
from tests.launch.test_launch import SERVE, SERVED
from tfm.commands import cli, serve


CLAIM = [*SERVE, '--workdir=/models/lm', '--volume-claim=models']


def print_manifests(capsys, *words):
  status, out, err = tfm(capsys, 'launch', *words)
  assert status == 0, err
  first, *lines, last = out.strip().splitlines()
  assert first == "kubectl apply -f - <<'END'" and last == 'END'
  return list(yaml.safe_load_all('\n'.join(lines)))


@pytest.mark.slow
@pytest.mark.parametrize('name', SERVED)
def test_manifests_are_valid(name, capsys):
  validator = pytest.importorskip('kubernetes_validate', reason='needs kubernetes-validate: make launch')
  manifests = print_manifests(capsys, *SERVED[name])
  for manifest in manifests:
    validator.validate(manifest, '1.31', strict=True)
  manifests[0]['spec']['template']['spec']['containers'][0]['readinessProbe']['every'] = 5
  with pytest.raises(validator.ValidationError, match='every'):
    validator.validate(manifests[0], '1.31', strict=True)


@pytest.mark.parametrize('name', SERVED)
def test_the_command_is_one_of_tfm_serve(name, capsys):
  container = print_manifests(capsys, *SERVED[name])[0]['spec']['template']['spec']['containers'][0]
  words = container['command']
  if words[0] == 'bash':
    *setup, line = words[2].splitlines()
    assert setup == ["export XLA_FLAGS='it'\"'\"'s'", 'pip install tfm']
    words = shlex.split(line)[1:]
  assert words[:2] == ['tfm', 'serve']
  args = cli.parse_arguments('serve', serve, words[2:])
  assert args.port == container['ports'][0]['containerPort'] and args.host == '0.0.0.0'
  mounts = [mount['mountPath'] for mount in container['volumeMounts']]
  assert args.workdir.startswith(f'{mounts[0]}/')
  assert name != 'kubernetes' or (args.rows, args.grace) == (16, 60)


def test_a_pod_lives_until_its_requests_have_ended(capsys):
  pod = print_manifests(capsys, *CLAIM, '--grace=60')[0]['spec']['template']['spec']
  [container] = pod['containers']
  drain = int(container['lifecycle']['preStop']['exec']['command'][1])
  assert pod['terminationGracePeriodSeconds'] > drain + 60


def test_replicas_are_fixed_or_scaled(capsys):
  fixed, _ = print_manifests(capsys, *CLAIM, '--replicas=3')
  assert fixed['spec']['replicas'] == 3
  scaled, _, scaler = print_manifests(capsys, *CLAIM, '--replicas=2', '--max-replicas=8')
  assert 'replicas' not in scaled['spec']
  assert (scaler['spec']['minReplicas'], scaler['spec']['maxReplicas']) == (2, 8)
  assert scaler['spec']['scaleTargetRef']['name'] == scaled['metadata']['name']


@pytest.mark.parametrize(
  'words, message',
  [
    (SERVE[:2], '--docker-image is missing; tfm launch kubernetes needs --docker-image, --cpu, --memory'),
    ([*SERVE, '--workdir=/models/lm'], 'must lie on a volume; name its claim by --volume-claim=NAME'),
    ([*SERVE, '--workdir=gs://a/b', '--volume-claim=x'], 'mounted as a bucket, without --volume-claim'),
    ([*SERVE, '--workdir=models'], '--workdir=models is a relative path'),
    ([*CLAIM, '--memory=8GB'], '--memory=8GB is no quantity of Kubernetes'),
    ([*CLAIM, '--gpus=none'], '--gpus=none must be a number, 1 or more'),
    ([*CLAIM, '--replicas=4', '--max-replicas=2'], '--max-replicas=2 must be --replicas=4 or more'),
    ([*CLAIM, '--row=4'], '--row is not a flag of tfm launch kubernetes; known: docker-image, '),
    (['gke', *CLAIM[1:]], 'tfm launch gke trains, and --serve is for kubernetes'),
    (['kubernetes', '--config=lm', '--workdir=/a/b'], 'tfm launch kubernetes serves a run; use --serve'),
  ],
)
def test_refusals(words, message, capsys):
  words = words if any('--workdir' in word for word in words) else [*words, '--workdir=/models/lm']
  status, _, err = tfm(capsys, 'launch', *words)
  assert status == 2 and message in err
