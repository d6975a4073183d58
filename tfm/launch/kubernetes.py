"""Kubernetes: a deployment of `tfm serve`, the service in front of it, and what adds and removes replicas."""

import pathlib
import re
import shlex
from typing import Any

import yaml

from tfm.errors import require
from tfm.launch.job import BUCKET, Job, Step, format_flag, validate_placement


PORT = 8000
# Of `tfm serve`; they go to it unchanged.
SERVE_OPTIONS = 'step', 'average', 'rows', 'length', 'queue', 'timeout', 'grace', 'chat_template'
OPTIONS = (
  'docker-image',
  'volume-claim',
  'namespace',
  'cpu',
  'memory',
  'gpus',
  'replicas',
  'max-replicas',
  *SERVE_OPTIONS,
)
QUANTITY = re.compile(r'[1-9][0-9]*(\.[0-9]+)?(m|[kMGT]i?)?')  # of cores or bytes: 4, 500m, 16Gi
BUSY = 70  # percent of the requested cores, on average over replicas, beyond which one is added
DRAIN = 5  # seconds in which a pod that ends still answers, until the service has noticed


def steps(job: Job) -> list[Step]:
  """`kubectl apply` of a Deployment, a Service and a HorizontalPodAutoscaler.

  Raises:
    ValueError: for missing or invalid options.
  """
  job.require_options('kubernetes', 'docker-image', 'cpu', 'memory')
  validate_placement(job)
  for name in ('cpu', 'memory'):
    require(
      QUANTITY.fullmatch(job.options[name]) is not None,
      f'--{name}={job.options[name]} is no quantity of Kubernetes; write for instance 4, 500m or 16Gi',
    )
  is_bucket = BUCKET.fullmatch(job.workdir) is not None
  require(
    is_bucket != bool(job.options.get('volume-claim')),
    f'--workdir={job.workdir} is mounted as a bucket, without --volume-claim'
    if is_bucket
    else f'--workdir={job.workdir} must lie on a volume; name its claim by --volume-claim=NAME, or use gs://…',
  )
  least = read_count(job, 'replicas', 1)
  most = read_count(job, 'max-replicas', least)
  require(most >= least, f'--max-replicas={most} must be --replicas={least} or more')
  manifests = [deployment(job, least), service(job)]
  if most > least:
    manifests.append(autoscaler(job, least, most))
  text = yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True, width=200)
  return [Step(('kubectl', 'apply', '-f', '-'), text)]


def read_count(job: Job, name: str, default: int) -> int:
  """An option that is a number from 1 on."""
  text = job.options.get(name, str(default))
  require(text.isascii() and text.isdigit() and int(text) > 0, f'--{name}={text} must be a number, 1 or more')
  return int(text)


def metadata(job: Job) -> dict[str, Any]:
  """Of every object."""
  namespace = {'namespace': job.options['namespace']} if 'namespace' in job.options else {}
  return dict(name=job.name, **namespace, labels={'app': job.name})


def deployment(job: Job, replicas: int) -> dict[str, Any]:
  """Pods that serve the run: each is ready once it answers, and ends its requests before it stops."""
  workdir, folder, volume = place_weights(job)
  grace = read_count(job, 'grace', 30)
  flags = [format_flag(name, job.options[name]) for name in SERVE_OPTIONS if name in job.options]
  command = ['tfm', 'serve', f'--workdir={workdir}', '--host=0.0.0.0', f'--port={PORT}', f'--name={job.name}']
  if lines := job.setup_lines():
    command = ['bash', '-c', '\n'.join([*lines, f'exec {shlex.join([*command, *flags, *job.arguments])}'])]
  else:
    command += [*flags, *job.arguments]
  requests = {'cpu': job.options['cpu'], 'memory': job.options['memory']}
  devices = {'nvidia.com/gpu': read_count(job, 'gpus', 1)} if 'gpus' in job.options else {}
  container = dict(
    name='serve',
    image=job.options['docker-image'],
    command=command,
    env=[{'name': name, 'value': '/cache'} for name in ('HOME', 'TFM_CACHE')],
    ports=[dict(name='http', containerPort=PORT)],
    resources=dict(requests=requests | devices, limits=dict(memory=job.options['memory']) | devices),
    # Loading and compiling may take half an hour; a pod that later does not answer for a minute starts anew.
    startupProbe=probe(10, 180),
    readinessProbe=probe(5, 2),
    livenessProbe=probe(20, 3),
    lifecycle=dict(preStop=dict(exec=dict(command=['sleep', str(DRAIN)]))),
    securityContext=dict(allowPrivilegeEscalation=False, capabilities=dict(drop=['ALL'])),
    volumeMounts=[
      dict(name='weights', mountPath=folder, readOnly=True),
      dict(name='cache', mountPath='/cache'),
    ],
  )
  annotations = {
    'prometheus.io/scrape': 'true',
    'prometheus.io/port': str(PORT),
    'prometheus.io/path': '/metrics',
  } | ({'gke-gcsfuse/volumes': 'true'} if 'csi' in volume else {})
  pod = dict(
    terminationGracePeriodSeconds=DRAIN + grace + 5,
    securityContext=dict(
      runAsNonRoot=True, runAsUser=1000, fsGroup=1000, seccompProfile=dict(type='RuntimeDefault')
    ),
    containers=[container],
    volumes=[dict(name='weights', **volume), dict(name='cache', emptyDir={})],
  )
  return dict(
    apiVersion='apps/v1',
    kind='Deployment',
    metadata=metadata(job),
    spec=dict(
      # What scales replicas sets their number; applied again, one here would undo it.
      **({} if job.options.get('max-replicas') else dict(replicas=replicas)),
      selector=dict(matchLabels={'app': job.name}),
      strategy=dict(type='RollingUpdate', rollingUpdate=dict(maxUnavailable=0, maxSurge=1)),
      template=dict(metadata=dict(labels={'app': job.name}, annotations=annotations), spec=pod),
    ),
  )


def place_weights(job: Job) -> tuple[str, str, dict[str, Any]]:
  """The workdir in the pod, the folder where its volume is mounted, and the volume."""
  if match := BUCKET.fullmatch(job.workdir):
    folder = f'/buckets/{match[1]}'
    attributes = dict(bucketName=match[1], mountOptions='implicit-dirs')
    volume = dict(csi=dict(driver='gcsfuse.csi.storage.gke.io', readOnly=True, volumeAttributes=attributes))
    return f'{folder}{match[2] or ""}', folder, volume
  claim = dict(claimName=job.options['volume-claim'], readOnly=True)
  return job.workdir, str(pathlib.PurePosixPath(job.workdir).parent), dict(persistentVolumeClaim=claim)


def probe(period: int, failures: int) -> dict[str, Any]:
  """Asks /health every `period` seconds; so many failures in a row count."""
  return dict(
    httpGet=dict(path='/health', port='http'),
    periodSeconds=period,
    failureThreshold=failures,
    timeoutSeconds=5,
  )


def service(job: Job) -> dict[str, Any]:
  """One address within the cluster for all pods."""
  return dict(
    apiVersion='v1',
    kind='Service',
    metadata=metadata(job),
    spec=dict(
      type='ClusterIP', selector={'app': job.name}, ports=[dict(name='http', port=80, targetPort='http')]
    ),
  )


def autoscaler(job: Job, least: int, most: int) -> dict[str, Any]:
  """Adds replicas while cores are busy; a pod on GPUs is busy when the core that feeds them is."""
  target = dict(type='Utilization', averageUtilization=BUSY)
  return dict(
    apiVersion='autoscaling/v2',
    kind='HorizontalPodAutoscaler',
    metadata=metadata(job),
    spec=dict(
      scaleTargetRef=dict(apiVersion='apps/v1', kind='Deployment', name=job.name),
      minReplicas=least,
      maxReplicas=most,
      metrics=[dict(type='Resource', resource=dict(name='cpu', target=target))],
    ),
  )
