"""Several processes as one run on JAX's multi-controller runtime: connect, synchronize, and exit together."""

import contextlib
import functools
import hashlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from tfm.errors import INVALID_INPUT_STATUS, MachineFailure
from tfm.parallel import timeouts


AUTO = 'auto'
PEER_LOST_STATUS = (
  75  # exit status if another process is lost: EX_TEMPFAIL, the same command may be run again
)
RESUME_HINT = 'steps after the last checkpoint are lost; run the same command in every process to resume'
REFUSAL = 'tfm/refusal'  # what a process has against its input, for the others
REFUSAL_INTERVAL = 1  # seconds after which they look for one
EXIT_BARRIER_TIMEOUT = 5  # seconds that a process waits for the error messages of the others before it exits
MAIN_PROCESS_EXIT_DELAY = (
  1  # seconds by which process 0 exits after the others, which JAX aborts once it is gone
)
# Errors of the runtime and the collective libraries if another process does not respond.
PEER_LOST_PATTERN = re.compile(
  r'gloo|nccl|connection|unavailable|deadline|heartbeat|barrier|coordination|preempt|aborted|peer',
  re.IGNORECASE,
)
_barriers, _gathers = itertools.count(), itertools.count(1)


def connect(  # more than six parameters: the flags of a command
  name: str,
  count: str,
  index: int | None,
  coordinator: str | None,
  heartbeat_timeout: int | None,
  connect_timeout: int | None,
) -> None:
  """Makes this process one of `count`; call it before any use of devices.

  Args:
    name: the command, for messages.
    count: number of processes; 'auto' for what `jax.distributed.initialize` detects (Slurm, a TPU pod,
      Kubernetes, Open MPI); '1' connects to none.
    index, coordinator: this process's number, and HOST:PORT of process 0; for a count above 1.
    heartbeat_timeout: seconds without a sign of life after which a process counts as dead, and all end; None:
      `timeouts.HEARTBEAT`.
    connect_timeout: seconds to wait for all processes to connect; None: `timeouts.CONNECT`.

  Raises:
    ValueError: for inconsistent values, or if `auto` detects nothing.
  """
  has_address = index is not None or coordinator is not None
  if count != AUTO and not (count.isdigit() and int(count) >= 1):
    raise ValueError(
      f"--processes={count} must be a number of processes, or 'auto' on Slurm, a TPU pod or Kubernetes"
    )
  for flag, value in (('heartbeat_timeout', heartbeat_timeout), ('connect_timeout', connect_timeout)):
    if value is not None and count == '1':
      raise ValueError(f'--{flag}={value} needs several processes; omit it, or set --processes')
    if value is not None and value < 1:
      raise ValueError(f'--{flag}={value} must be at least 1 second')
  heartbeat_timeout, connect_timeout = (
    heartbeat_timeout or timeouts.HEARTBEAT,
    connect_timeout or timeouts.CONNECT,
  )
  if count in (AUTO, '1'):
    if has_address:
      raise ValueError(
        f'--processes={count} takes neither --process nor --coordinator; use them with --processes above 1'
      )
    if count == '1':
      return
  elif index is None or not 0 <= index < int(count):
    raise ValueError(f'--process={index} is not below --processes={count}; number processes from 0')
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
  prefix = f'tfm {name}' + (f': process {index} of {count}' if initialize_fields else '')
  hint = (
    ', each with its own --process, and reach the same --coordinator, a free port of process 0'
    if initialize_fields
    else ''
  )
  try:
    with _print_if_killed(
      f'{prefix}: it was killed, or aborted by JAX (see above) because not all processes connected within '
      f'--connect_timeout={connect_timeout} seconds; check that all were started{hint}'
    ):
      jax.distributed.initialize(
        **initialize_fields,
        heartbeat_timeout_seconds=heartbeat_timeout,
        initialization_timeout=connect_timeout,
      )
  except ValueError as error:
    raise ValueError(
      f'--processes={count} detects no Slurm step, TPU pod, Kubernetes job or Open MPI ({error}); '
      'use --processes=N --process=I --coordinator=HOST:PORT'
    ) from error


def is_main_process() -> bool:
  """Whether this is process 0, which writes and logs for all."""
  return jax.process_index() == 0


def barrier(name: str = '', timeout: float = 7 * 24 * 3600) -> None:
  """Waits until every process calls it, matched by call count or by name.

  Uses the coordination service and no devices. The heartbeat ends the wait if a process dies, so the timeout
  may be long.
  """
  if jax.process_count() > 1:
    wait = multihost.get_barrier_sync_fn(processes=set(range(jax.process_count())))
    wait(key=f'tfm/{name or next(_barriers)}', timeout_ms=int(timeout * 1000))


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
  """Runs the block in process 0 first and then in the others, which find its files on the shared disk."""
  if not is_main_process():
    barrier()
  try:
    yield
  finally:
    if is_main_process():
      barrier()


def gather_bytes(record: bytes) -> list[bytes]:
  """All-gathers a record of each process, in process order.

  Uses the coordination service: a collective of the devices would wait for the step that they compute, and
  leave them idle afterwards.
  """
  if jax.process_count() == 1:
    return [record]
  _connect_devices()
  client, number, key = multihost.get_jax_distributed_client(), next(_gathers), f'{jax.process_index():08d}'
  client.key_value_set_bytes(f'tfm/gather/{number}/{key}', record)
  barrier(f'gather/{number}')
  # Whoever has come here has read the records before these.
  client.key_value_delete(f'tfm/gather/{number - 1}/{key}')
  return [value for _, value in sorted(client.key_value_dir_get_bytes(f'tfm/gather/{number}/'))]


@functools.cache
def _connect_devices() -> None:
  """Makes the devices' first collective once all are here: gloo (CPU) waits for it for 30 seconds only."""
  barrier()
  multihost_utils.sync_global_devices('tfm')


def require_equal(facts: Mapping[str, Any]) -> None:
  """Raises unless every named value is the same in all processes.

  Raises:
    ValueError: names the value and the processes that differ from process 0.
  """
  digests = gather_bytes(
    b''.join(hashlib.blake2b(repr(value).encode(), digest_size=8).digest() for value in facts.values())
  )
  for i, (name, value) in enumerate(facts.items()):
    values = [digest[8 * i : 8 * i + 8] for digest in digests]
    if others := [process for process, one in enumerate(values) if one != values[0]]:
      raise ValueError(
        f'{name} is not the same in all processes: process {", ".join(map(str, others))} differs from '
        f'process 0, and process {jax.process_index()} has {str(value)[:200]}; '
        'start all with the same files and flags'
      )


def preemption_requested(step: int) -> bool:
  """Whether all processes must stop after this step because one received SIGTERM.

  Every process must call it at every step. JAX's preemption service agrees on the step in the background, at
  no cost to the step (`multihost_utils.reached_preemption_sync_point`).
  """
  return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def interrupt_requests_preemption() -> Iterator[None]:
  """Converts Ctrl-C into the SIGTERM that JAX's preemption service handles; a second Ctrl-C interrupts."""
  before = signal.getsignal(signal.SIGINT)

  def forward_signal(number, frame):
    signal.signal(signal.SIGINT, before)
    signal.raise_signal(signal.SIGTERM)

  signal.signal(signal.SIGINT, forward_signal)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def abort_all_on_error(name: str, user_errors: tuple[type[Exception], ...]) -> Iterator[None]:
  """Exits this process at once with an error message if the block fails.

  An ordinary exit would wait for the other processes, which wait for this one.

  Args:
    name: the command, for the message.
    user_errors: errors whose text is a message for users, with exit status 2, or 1 for a `MachineFailure`.
  """
  if jax.process_count() == 1:
    yield
    return
  process = f'process {jax.process_index()} of {jax.process_count()}'
  prefix = f'tfm {name}: {process}'
  status = None
  with (
    _print_if_killed(
      f'{prefix}: it was killed, or aborted by JAX (see above) because another process of this run is gone '
      f'or does not respond; {RESUME_HINT}'
    ) as cancel,
    _ended_by_refusals(name, cancel),
  ):
    try:
      yield
    except Exception as error:
      status, message = _status_and_message(error, user_errors)
      is_failure = status == 1 and not isinstance(error, MachineFailure)
      if is_failure or os.environ.get('TFM_TRACEBACK'):
        traceback.print_exc()
      print(f'{prefix}: {message}', file=sys.stderr, flush=True)
  if status == INVALID_INPUT_STATUS:
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
      multihost.get_jax_distributed_client().key_value_set(REFUSAL, f'{process}: {message}')
  if status is not None:
    _exit_all(status)


@contextlib.contextmanager
def _ended_by_refusals(name: str, cancel: Callable[[], None]) -> Iterator[None]:
  """Ends this process, in the block, when another one has refused its input: it would wait for that one, and
  be started again.

  Args:
    cancel: of `_print_if_killed`.
  """
  done = threading.Event()

  def watch():
    while not done.wait(REFUSAL_INTERVAL):
      with contextlib.suppress(jax.errors.JaxRuntimeError):  # there is none, or no service any more
        message = multihost.get_jax_distributed_client().key_value_try_get(REFUSAL)
        if not done.is_set():
          print(f'tfm {name}: {message}', file=sys.stderr, flush=True)
          cancel()
          _exit_all(INVALID_INPUT_STATUS)

  threading.Thread(target=watch, daemon=True).start()
  try:
    yield
  finally:
    done.set()


def _status_and_message(error: Exception, user_errors: tuple[type[Exception], ...]) -> tuple[int, str]:
  # Orbax wraps runtime errors in OSError, and closing files may raise after the original error.
  for one in _causes(error):
    if _is_runtime_error(one) and PEER_LOST_PATTERN.search(message := _single_line(one)):
      return PEER_LOST_STATUS, f'another process of this run is gone ({message[:160]}); {RESUME_HINT}'
  if isinstance(error, user_errors) and not _is_runtime_error(error):
    return 1 if isinstance(error, MachineFailure) else INVALID_INPUT_STATUS, _single_line(error)
  return 1, f'{type(error).__name__}: {_single_line(error)}'


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  """An error and its chain of causes and contexts, as a traceback shows them."""
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
def _print_if_killed(message: str) -> Iterator[Callable[[], None]]:
  """Prints a message if this process dies in the block, unless it has called the given function.

  JAX's runtime aborts without Python handlers.
  """
  watcher = subprocess.Popen(
    ['sh', '-c', 'read -r done || echo "$0" >&2', message], stdin=subprocess.PIPE, start_new_session=True
  )

  def cancel():
    if watcher.poll() is None:
      watcher.communicate(b'done\n')

  try:
    yield cancel
  finally:
    cancel()


def _exit_all(status: int) -> None:
  try:
    # The coordination service ends with process 0, which would abort processes before they print their
    # errors.
    barrier('end', EXIT_BARRIER_TIMEOUT)
    if is_main_process():
      time.sleep(MAIN_PROCESS_EXIT_DELAY)
  except Exception:
    pass  # a process that misses the barrier is gone, and this one exits in any case
  sys.stdout.flush()
  os._exit(status)
