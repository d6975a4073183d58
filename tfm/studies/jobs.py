"""How a study uses machines: its CPU cores as devices, slices of its arms, and several processes."""

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import jax

from tfm.config.overlay import complete
from tfm.errors import require
from tfm.parallel import chip_specs
from tfm.studies import runner
from tfm.studies.arms import Arm
from tfm.studies.study import Study
from tfm.training.progress_line import print_status


# For glibc: huge pages. A step takes its temporaries anew from the system, and that of a small model spends a
# seventh of its time on page faults (docs/results/speed.md).
HUGE_PAGES = 'glibc.malloc.hugetlb=1'


def use_cpu_cores_as_devices(study: Study) -> None:
  """Makes each CPU core a JAX device, because seeds are distributed over devices.

  The number of devices divides the rows of a batch, which a run that trains alone distributes over them. A
  number that the environment sets is not changed.
  """
  is_configured = (
    jax.config.jax_num_cpu_devices >= 0
    or 'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', '')
  )
  training = complete(study.config).training
  rows = training.batch_size // training.gradient_accumulation
  if study.seeds > 1 and not is_configured:
    with contextlib.suppress(RuntimeError):  # JAX is already initialized
      jax.config.update(
        'jax_num_cpu_devices', max(n for n in range(1, chip_specs.cpu_core_count() + 1) if rows % n == 0)
      )


def slice_arms(arms: dict[str, Arm], text: str | None) -> dict[str, Arm]:
  """Share I of N of the arms for 'I/N', of about the same FLOPs as the others; all arms for None.

  The arms are dealt out, the most expensive ones first, each to the share that costs least so far. So every
  process finds the same shares.

  Raises:
    ValueError: for another format.
  """
  if text is None:
    return arms
  first, _, count = text.partition('/')
  require(
    first.isdigit() and count.isdigit() and int(first) < int(count),
    f'--slice={text} must be I/N with I < N, such as 0/4 for the first of four slices',
  )
  costs, shares = [0.0] * int(count), [set() for _ in range(int(count))]
  for arm in sorted(arms.values(), key=lambda arm: arm.flops * arm.tokens, reverse=True):
    cheapest = costs.index(min(costs))
    costs[cheapest] += arm.flops * arm.tokens
    shares[cheapest].add(arm.name)
  return {name: arm for name, arm in arms.items() if name in shares[int(first)]}


def share_cores(jobs: int) -> list[set[int]]:
  """The cores of each of N processes, so that their threads do not take turns on all of them.

  Shares are disjoint; they are all cores where there are fewer cores than processes, and empty where the
  system has no CPU affinity.
  """
  if not hasattr(os, 'sched_getaffinity'):  # macOS
    return [set()] * jobs
  cores = sorted(os.sched_getaffinity(0))
  if len(cores) < jobs:
    return [set(cores)] * jobs
  bounds = [i * len(cores) // jobs for i in range(jobs + 1)]
  return [set(cores[start:end]) for start, end in itertools.pairwise(bounds)]


@contextlib.contextmanager
def pinned_to(cores: set[int]) -> Iterator[None]:
  """Processes that start within run on these cores; on those of this process if there are none."""
  if not cores:
    yield
    return
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)  # of this thread, which a new process inherits
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


def run_jobs(words: Sequence[str], jobs: int, workdir: pathlib.Path) -> list[int]:
  """Runs a command in several processes, each with a slice of the arms and a share of the CPU cores.

  Their output goes to DIR/jobs. Their arrays are in huge pages, unless the environment sets GLIBC_TUNABLES.

  Args:
    words: the command, with its flag --jobs.

  Returns:
    The numbers of the processes that failed.

  Raises:
    Stopped: on SIGTERM or Ctrl-C, after the other processes have stopped.
  """
  folder = workdir / 'jobs'
  folder.mkdir(parents=True, exist_ok=True)
  print_status(f'{jobs} processes; their output: {folder}/0.txt …')
  processes, environment = [], dict(GLIBC_TUNABLES=HUGE_PAGES) | os.environ
  # A flag is given once.
  own = [
    word
    for before, word in itertools.pairwise(['', *words])
    if '--jobs' not in (before, word) and not word.startswith('--jobs=')
  ]
  if jax.config.jax_num_cpu_devices > 0:
    environment['JAX_NUM_CPU_DEVICES'] = str(max(1, jax.config.jax_num_cpu_devices // jobs))
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    for i, cores in enumerate(share_cores(jobs)):
      with (folder / f'{i}.txt').open('w', encoding='utf-8') as file, pinned_to(cores):
        processes.append(
          subprocess.Popen(
            [sys.executable, '-m', 'tfm', *own, f'--slice={i}/{jobs}'],
            stdout=file,
            stderr=file,
            env=environment,
          )
        )
    failed = [i for i, process in enumerate(processes) if process.wait()]
  except KeyboardInterrupt:
    for process in processes:
      process.terminate()
    for process in processes:
      process.wait()
    raise runner.Stopped from None
  finally:
    signal.signal(signal.SIGTERM, before)
  if failed:
    print_status(f'processes {failed} failed; see their output in {folder}')
  return failed
