"""What the numbers were measured on."""

import contextlib
import hashlib
import importlib.metadata
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator

import tfm
from tfm.benchmark.process import describe_machine


# What the driver reports of a GPU. Clocks and power are those while a cell ran.
FIELDS = 'name', 'driver_version', 'power.limit', 'memory.total', 'clocks.sm', 'clocks.mem', 'power.draw'
SUMMARIES = {'clocks.sm': statistics.median_low, 'clocks.mem': statistics.median_low, 'power.draw': max}
# The distributions that decide how fast a program is, beside those that `describe_machine` names.
LIBRARIES = re.compile('jaxlib|jax-cuda.*|libtpu|optax|numpy|nvidia-(cudnn|cublas|nccl).*|triton|fla-core')


def describe_device() -> str:
  """The kind of the device that JAX uses, found in a process of its own, as a device belongs to one; and the
  machine's versions.
  """
  code = 'import jax; d = jax.local_devices()[0]; print(d.platform, d.device_kind)'
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, encoding='utf-8')
  if done.returncode:
    raise ValueError(f'JAX finds no device: {done.stderr.strip().splitlines()[-1]}')
  found = {each.name.lower(): each.version for each in importlib.metadata.distributions() if each.name}
  libraries = ', '.join(f'{name} {found[name]}' for name in sorted(filter(LIBRARIES.fullmatch, found)))
  return f'{done.stdout.strip()}; {describe_machine()}, tfm {tfm.__version__}, {libraries}'


def digest_code() -> str:
  """Twelve hexadecimal digits that change with any file of the package."""
  folder = pathlib.Path(tfm.__file__).parent
  digest = hashlib.sha256()
  for path in sorted(folder.rglob('*.py')):
    digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
  return digest.hexdigest()[:12]


@contextlib.contextmanager
def watch_clocks(milliseconds: int = 250) -> Iterator[dict[str, str]]:
  """Within the block nvidia-smi reads the first GPU again and again; after it the dictionary has the median
  clocks and the greatest power. It stays empty where there is no nvidia-smi.
  """
  clocks: dict[str, str] = {}
  fields = f'--query-gpu={",".join(FIELDS)}'
  command = ['nvidia-smi', fields, '--format=csv,noheader', '--id=0', f'--loop-ms={milliseconds}']
  try:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding='utf-8')
  except FileNotFoundError:
    yield clocks
    return
  try:
    yield clocks
  finally:
    process.terminate()
    clocks |= summarize_clocks(process.communicate()[0])


def summarize_clocks(text: str) -> dict[str, str]:
  """Lines of nvidia-smi → each field's last value; of clocks the median and of power the maximum."""
  lines = [line.split(', ') for line in text.splitlines()]
  columns = dict(zip(FIELDS, zip(*(line for line in lines if len(line) == len(FIELDS)))))
  summary = {field: values[-1] for field, values in columns.items()}
  for field, choose in SUMMARIES.items():
    known = [value for value in columns.get(field, ()) if value[:1].isdigit()]  # not '[N/A]'
    if known:
      summary[field] = f'{choose([float(value.split()[0]) for value in known]):g} {known[0].split()[1]}'
  return summary
