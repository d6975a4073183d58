"""Several processes as one run, by JAX's own multi-controller runtime: they join, agree, tell each other, and stop together."""

import contextlib
import functools
import hashlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost


AUTO = 'auto'
PEER_LOST_STATUS = (
  75  # exit status when another process is gone: EX_TEMPFAIL, the same command may be run again
)
RESUME_HINT = (
  'what came after the last checkpoint is lost, and the same command in every process goes on from there'
)
HEARTBEAT_TIMEOUT, CONNECT_TIMEOUT = 60, 300  # seconds, unless told
EXIT_BARRIER_TIMEOUT = 5  # seconds that a process waits for the others to say the same, before it ends
MAIN_PROCESS_EXIT_DELAY = (
  1  # seconds after which the first follows the others: whoever sees it go, JAX aborts
)
# How the runtime and the libraries of collectives say that another process does not answer.
PEER_LOST_PATTERN = re.compile(
  r'gloo|nccl|connection|unavailable|deadline|heartbeat|barrier|coordination|preempt|aborted|peer',
  re.IGNORECASE,
)
_barriers = itertools.count()


def connect(
  count: str,
  index: int | None,
  coordinator: str | None,
  heartbeat_timeout: int | None,
  connect_timeout: int | None,
) -> None:
  """Makes this process one of `count`; must come before anything asks for devices.

  Args:
    count: how many; 'auto' is what `jax.distributed.initialize` finds in the environment (Slurm, a TPU pod, Kubernetes,
      Open MPI), '1' joins nothing.
    index, coordinator: this process's number, and HOST:PORT at which process 0 is reached; of a number above 1.
    heartbeat: seconds without a sign of life after which a process counts as dead, and all end; None: HEARTBEAT.
    gathering: seconds to wait for all processes to come; None: GATHERING.

  Raises:
    ValueError: if these do not make sense, or `auto` finds nothing.
  """
  has_address = index is not None or coordinator is not None
  if count != AUTO and not (count.isdigit() and int(count) >= 1):
    raise ValueError(
      f"--processes={count} must be a number of processes, or 'auto' where Slurm, a TPU pod or Kubernetes tells it"
    )
  for name, value in (('heartbeat_timeout', heartbeat_timeout), ('connect_timeout', connect_timeout)):
    if value is not None and count == '1':
      raise ValueError(
        f'--{name}={value} is of several processes, and here is one; leave it out, or tell --processes'
      )
    if value is not None and value < 1:
      raise ValueError(f'--{name}={value} must be at least 1 second')
  heartbeat_timeout, connect_timeout = (
    heartbeat_timeout or HEARTBEAT_TIMEOUT,
    connect_timeout or CONNECT_TIMEOUT,
  )
  if count in (AUTO, '1'):
    if has_address:
      raise ValueError(
        f'--processes={count} takes neither --process nor --coordinator, which are of a number of processes above 1'
      )
    if count == '1':
      return
  elif index is None or not 0 <= index < int(count):
    raise ValueError(f'--process={index} is not below --processes={count}; number the processes from 0')
  elif not re.fullmatch(r'\S+:\d+', coordinator or ''):
    raise ValueError(
      f'--coordinator={coordinator} must be HOST:PORT of process 0, the same for all processes'
    )
  initialize_fields = (
    {}
    if count == AUTO
    else dict(
      coordinator_address=coordinator,
      num_processes=int(count),
      process_id=index,
      cluster_detection_method='deactivate',
    )
  )
  prefix = 'tfm train' + (f': process {index} of {count}' if initialize_fields else '')
  with_own = (
    ', each with a --process of its own, and reach the same --coordinator, a free port where process 0 runs'
    if initialize_fields
    else ''
  )
  try:
    with _print_if_killed(
      f'{prefix}: it was killed, or ended by JAX (in its words above) because not all processes came within '
      f'--connect_timeout={connect_timeout} seconds; see that all were started{with_own}'
    ):
      jax.distributed.initialize(
        **initialize_fields,
        heartbeat_timeout_seconds=heartbeat_timeout,
        initialization_timeout=connect_timeout,
      )
  except ValueError as error:
    raise ValueError(
      f'--processes={count} finds no Slurm step, TPU pod, Kubernetes job or Open MPI here ({error}); '
      '--processes=N --process=I --coordinator=HOST:PORT says it'
    ) from error


def is_main_process() -> bool:
  """Whether this is the process that writes and speaks for all; true of one alone."""
  return jax.process_index() == 0


def barrier(name: str = '', timeout: float = 7 * 24 * 3600) -> None:
  """Returns when every process has come here, as often or by one name, through the coordination service: no device is asked.

  A dead process ends the wait by the heartbeat, so the timeout may be long.
  """
  if jax.process_count() > 1:
    wait = multihost.get_barrier_sync_fn(processes=set(range(jax.process_count())))
    wait(key=f'tfm/{name or next(_barriers)}', timeout_ms=int(timeout * 1000))


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
  """Process 0 does the block first, and then the others, which find on a shared disk what it has written."""
  if not is_main_process():
    barrier()
  try:
    yield
  finally:
    if is_main_process():
      barrier()


def gather_bytes(record: bytes) -> list[bytes]:
  """The records of all processes, each as long as this one, in their order; a small collective."""
  if jax.process_count() == 1:
    return [record]
  _barrier_before_first_collective()
  return [row.tobytes() for row in multihost_utils.process_allgather(np.frombuffer(record, np.uint8))]


@functools.cache
def _barrier_before_first_collective() -> None:
  """Once: gloo, the collectives of CPUs, gives a process 30 seconds to come to the first one, and others may yet prepare data."""
  barrier()


def require_equal(facts: Mapping[str, Any]) -> None:
  """Refuses what is not the same in every process; each fact has its name, for the sentence.

  Raises:
    ValueError: naming the facts and the processes that differ from process 0.
  """
  digests = gather_bytes(
    b''.join(hashlib.blake2b(repr(value).encode(), digest_size=8).digest() for value in facts.values())
  )
  for i, (name, value) in enumerate(facts.items()):
    of = [digest[8 * i : 8 * i + 8] for digest in digests]
    if others := [process for process, one in enumerate(of) if one != of[0]]:
      raise ValueError(
        f'{name} is not the same in all processes: that of process {", ".join(map(str, others))} differs from that of '
        f'process 0, and process {jax.process_index()} has {str(value)[:200]}; all need the same files and flags'
      )


def preemption_requested(step: int) -> bool:
  """Whether all processes are to stop after this step, because one of them got SIGTERM; to be asked at every step, by all.

  JAX's preemption service agrees on a step in the background, which costs the step nothing
  (`multihost_utils.reached_preemption_sync_point`).
  """
  return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def interrupt_requests_preemption() -> Iterator[None]:
  """Makes Ctrl-C in one process the SIGTERM for which JAX's preemption service waits; a second Ctrl-C does interrupt."""
  before = signal.getsignal(signal.SIGINT)

  def note(number, frame):
    signal.signal(signal.SIGINT, before)
    signal.raise_signal(signal.SIGTERM)

  signal.signal(signal.SIGINT, note)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def abort_all_on_error(name: str, refused: tuple[type[Exception], ...]) -> Iterator[None]:
  """Ends this process at once if the block fails, with one sentence: an ordinary exit would wait for the others, who wait for it.

  Args:
    name: of the command, for the sentence; refused: errors whose text is a sentence for people, of exit status 2.
  """
  if jax.process_count() == 1:
    yield
    return
  prefix = f'tfm {name}: process {jax.process_index()} of {jax.process_count()}'
  status = None
  with _print_if_killed(
    f'{prefix}: it was killed, or ended by JAX (in its words above, if any) because another process of this '
    f'run is gone or gives no sign of life; {RESUME_HINT}'
  ):
    try:
      yield
    except Exception as error:
      status, message = _status_and_message(error, refused)
      if status == 1 or os.environ.get('TFM_TRACEBACK'):
        traceback.print_exc()
      print(f'{prefix}: {message}', file=sys.stderr, flush=True)
  if status is not None:
    _exit_all(status)


def _status_and_message(error: Exception, refused: tuple[type[Exception], ...]) -> tuple[int, str]:
  # Orbax makes an OSError of the runtime's error, and closing what was open may fail after the error that counts.
  for one in _causes(error):
    if _is_runtime_error(one) and PEER_LOST_PATTERN.search(message := _single_line(one)):
      return PEER_LOST_STATUS, f'another process of this run is gone ({message[:160]}); {RESUME_HINT}'
  if isinstance(error, refused) and not _is_runtime_error(error):
    return 2, _single_line(error)
  return 1, f'{type(error).__name__}: {_single_line(error)}'


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  """An error, what it was raised from or in the handling of, and so on: what a traceback tells."""
  while error is not None:
    yield error
    error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_runtime_error(error: BaseException) -> bool:
  return type(error).__module__.startswith(('jax', 'jaxlib')) or bool(
    re.match('[A-Z_]+: ', _single_line(error))
  )


def _single_line(error: BaseException) -> str:
  return ' '.join(str(error).split())


@contextlib.contextmanager
def _print_if_killed(message: str) -> Iterator[None]:
  """Has them said if this process dies in the block: JAX's runtime aborts where another process is gone, and asks no Python."""
  watcher = subprocess.Popen(
    ['sh', '-c', 'read -r done || echo "$0" >&2', message], stdin=subprocess.PIPE, start_new_session=True
  )
  try:
    yield
  finally:
    watcher.communicate(b'done\n')


def _exit_all(status: int) -> None:
  try:
    # The coordination service ends with process 0, and takes down whoever has not yet spoken.
    barrier('end', EXIT_BARRIER_TIMEOUT)
    if is_main_process():
      time.sleep(MAIN_PROCESS_EXIT_DELAY)
  except Exception:
    pass  # whoever does not come is gone already, and this process ends in any case
  sys.stdout.flush()
  os._exit(status)
