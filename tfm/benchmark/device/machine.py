"""What the numbers were measured on."""

import subprocess
import sys

import tfm
from tfm.benchmark.process import describe_machine


# Clocks and power as the driver reports them at the moment.
FIELDS = 'name', 'driver_version', 'clocks.sm', 'clocks.mem', 'power.draw', 'power.limit', 'memory.total'


def describe_device() -> str:
  """The kind of the device that JAX uses, found in a process of its own, as a device belongs to one."""
  code = 'import jax; d = jax.local_devices()[0]; print(d.platform, d.device_kind)'
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, encoding='utf-8')
  if done.returncode:
    raise ValueError(f'JAX finds no device: {done.stderr.strip().splitlines()[-1]}')
  return f'{done.stdout.strip()}; {describe_machine()}, tfm {tfm.__version__}'


def read_clocks() -> dict[str, str]:
  """Clocks and power of a GPU, by nvidia-smi; {} where there is none."""
  command = ['nvidia-smi', f'--query-gpu={",".join(FIELDS)}', '--format=csv,noheader']
  try:
    done = subprocess.run(command, capture_output=True, text=True, encoding='utf-8', timeout=20)
  except (FileNotFoundError, subprocess.TimeoutExpired):
    return {}
  lines = done.stdout.splitlines()
  return dict(zip(FIELDS, (value.strip() for value in lines[0].split(',')))) if lines else {}
