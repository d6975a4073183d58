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
LOST = 75  # exit status when another process is gone: EX_TEMPFAIL, the same command may be run again
AGAIN = (
  'what came after the last checkpoint is lost, and the same command in every process goes on from there'
)
HEARTBEAT, GATHERING = 60, 300  # seconds, unless told
PARTING = 5  # seconds that a process waits for the others to say the same, before it ends
AFTER = 1  # seconds after which the first follows the others: whoever sees it go, JAX aborts
# How the runtime and the libraries of collectives say that another process does not answer.
GONE = re.compile(
  r'gloo|nccl|connection|unavailable|deadline|heartbeat|barrier|coordination|preempt|aborted|peer',
  re.IGNORECASE,
)
_barriers = itertools.count()


def join(
  count: str, index: int | None, coordinator: str | None, heartbeat: int | None, gathering: int | None
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
  told = index is not None or coordinator is not None
  if count != AUTO and not (count.isdigit() and int(count) >= 1):
    raise ValueError(
      f"--processes={count} must be a number of processes, or 'auto' where Slurm, a TPU pod or Kubernetes tells it"
    )
  for name, value in (('heartbeat_timeout', heartbeat), ('connect_timeout', gathering)):
    if value is not None and count == '1':
      raise ValueError(
        f'--{name}={value} is of several processes, and here is one; leave it out, or tell --processes'
      )
    if value is not None and value < 1:
      raise ValueError(f'--{name}={value} must be at least 1 second')
  heartbeat, gathering = heartbeat or HEARTBEAT, gathering or GATHERING
  if count in (AUTO, '1'):
    if told:
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
  known = (
    {}
    if count == AUTO
    else dict(
      coordinator_address=coordinator,
      num_processes=int(count),
      process_id=index,
      cluster_detection_method='deactivate',
    )
  )
  speaker = 'tfm train' + (f': process {index} of {count}' if known else '')
  with_own = (
    ', each with a --process of its own, and reach the same --coordinator, a free port where process 0 runs'
    if known
    else ''
  )
  try:
    with _last_words(
      f'{speaker}: it was killed, or ended by JAX (in its words above) because not all processes came within '
      f'--connect_timeout={gathering} seconds; see that all were started{with_own}'
    ):
      jax.distributed.initialize(
        **known, heartbeat_timeout_seconds=heartbeat, initialization_timeout=gathering
      )
  except ValueError as error:
    raise ValueError(
      f'--processes={count} finds no Slurm step, TPU pod, Kubernetes job or Open MPI here ({error}); '
      '--processes=N --process=I --coordinator=HOST:PORT says it'
    ) from error


def first() -> bool:
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
def in_turn() -> Iterator[None]:
  """Process 0 does the block first, and then the others, which find on a shared disk what it has written."""
  if not first():
    barrier()
  try:
    yield
  finally:
    if first():
      barrier()


def gathered(record: bytes) -> list[bytes]:
  """The records of all processes, each as long as this one, in their order; a small collective."""
  if jax.process_count() == 1:
    return [record]
  _meet()
  return [row.tobytes() for row in multihost_utils.process_allgather(np.frombuffer(record, np.uint8))]


@functools.cache
def _meet() -> None:
  """Once: gloo, the collectives of CPUs, gives a process 30 seconds to come to the first one, and others may yet prepare data."""
  barrier()


def agree(facts: Mapping[str, Any]) -> None:
  """Refuses what is not the same in every process; each fact has its name, for the sentence.

  Raises:
    ValueError: naming the facts and the processes that differ from process 0.
  """
  digests = gathered(
    b''.join(hashlib.blake2b(repr(value).encode(), digest_size=8).digest() for value in facts.values())
  )
  for i, (name, value) in enumerate(facts.items()):
    of = [digest[8 * i : 8 * i + 8] for digest in digests]
    if others := [process for process, one in enumerate(of) if one != of[0]]:
      raise ValueError(
        f'{name} is not the same in all processes: that of process {", ".join(map(str, others))} differs from that of '
        f'process 0, and process {jax.process_index()} has {str(value)[:200]}; all need the same files and flags'
      )


def stop_asked(step: int) -> bool:
  """Whether all processes are to stop after this step, because one of them got SIGTERM; to be asked at every step, by all.

  JAX's preemption service agrees on a step in the background, which costs the step nothing
  (`multihost_utils.reached_preemption_sync_point`).
  """
  return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def interrupt_is_preemption() -> Iterator[None]:
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
def together(name: str, refused: tuple[type[Exception], ...]) -> Iterator[None]:
  """Ends this process at once if the block fails, with one sentence: an ordinary exit would wait for the others, who wait for it.

  Args:
    name: of the command, for the sentence; refused: errors whose text is a sentence for people, of exit status 2.
  """
  if jax.process_count() == 1:
    yield
    return
  speaker = f'tfm {name}: process {jax.process_index()} of {jax.process_count()}'
  status = None
  with _last_words(
    f'{speaker}: it was killed, or ended by JAX (in its words above, if any) because another process of this '
    f'run is gone or gives no sign of life; {AGAIN}'
  ):
    try:
      yield
    except Exception as error:
      status, said = _sentence(error, refused)
      if status == 1 or os.environ.get('TFM_TRACEBACK'):
        traceback.print_exc()
      print(f'{speaker}: {said}', file=sys.stderr, flush=True)
  if status is not None:
    _end(status)


def _sentence(error: Exception, refused: tuple[type[Exception], ...]) -> tuple[int, str]:
  # Orbax makes an OSError of the runtime's error, and closing what was open may fail after the error that counts.
  for one in _causes(error):
    if _of_runtime(one) and GONE.search(said := _line(one)):
      return LOST, f'another process of this run is gone ({said[:160]}); {AGAIN}'
  if isinstance(error, refused) and not _of_runtime(error):
    return 2, _line(error)
  return 1, f'{type(error).__name__}: {_line(error)}'


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  """An error, what it was raised from or in the handling of, and so on: what a traceback tells."""
  while error is not None:
    yield error
    error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _of_runtime(error: BaseException) -> bool:
  return type(error).__module__.startswith(('jax', 'jaxlib')) or bool(re.match('[A-Z_]+: ', _line(error)))


def _line(error: BaseException) -> str:
  return ' '.join(str(error).split())


@contextlib.contextmanager
def _last_words(said: str) -> Iterator[None]:
  """Has them said if this process dies in the block: JAX's runtime aborts where another process is gone, and asks no Python."""
  heir = subprocess.Popen(
    ['sh', '-c', 'read -r done || echo "$0" >&2', said], stdin=subprocess.PIPE, start_new_session=True
  )
  try:
    yield
  finally:
    heir.communicate(b'done\n')


def _end(status: int) -> None:
  try:
    # The coordination service ends with process 0, and takes down whoever has not yet spoken.
    barrier('end', PARTING)
    if first():
      time.sleep(AFTER)
  except Exception:
    pass  # whoever does not come is gone already, and this process ends in any case
  sys.stdout.flush()
  os._exit(status)
