"""The thread in which an engine runs, and the queue of what waits for a row."""

import collections
import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from contextlib import AbstractContextManager

from tfm.serving.engine import Engine, Sequence
from tfm.serving.service import QueueFull, Unavailable


log = logging.getLogger(__name__)
STOPPED = 'the server stops; send the request again to another one'


class Worker:
  """Continues sequences in the order of their arrival, as many at once as the engine has rows.

  Attributes:
    queue: the most sequences that wait for a row.
    failure: why no sequence can be continued any more; '' if they can.
  """

  def __init__(self, engine: Engine, queue: int, context: Callable[[], AbstractContextManager]):
    """`context` is entered in the thread: the mesh."""
    self.queue, self.failure = queue, ''
    self._engine, self._context = engine, context
    self._changed = threading.Condition()
    self._waiting, self._cancelled = collections.deque(), []
    self._is_stopping = False
    self._thread = threading.Thread(target=self._run, name='engine', daemon=True)

  @property
  def waiting(self) -> int:
    """How many sequences wait for a row."""
    return len(self._waiting)

  @property
  def active(self) -> int:
    """How many sequences have a row."""
    return self._engine.active

  def start(self) -> None:
    """Starts the thread."""
    self._thread.start()

  def stop(self) -> None:
    """Ends the thread after its step; sequences that are not continued to their end fail."""
    with self._changed:
      self._is_stopping = True
      self._changed.notify()
    self._thread.join()

  def submit(self, sequences: Sequences[Sequence]) -> None:
    """Queues sequences, all of them or none.

    Raises:
      ValueError: for one that cannot be continued.
      QueueFull: if they have no room now.
      Unavailable: if the engine failed or stops.
    """
    for sequence in sequences:
      self._engine.validate(sequence)
    with self._changed:
      if self.failure or self._is_stopping:
        raise Unavailable(self.failure or STOPPED)
      if self.waiting + len(sequences) > self.queue:
        raise QueueFull(f'{self.waiting} texts wait and the queue has room for {self.queue}; try again later')
      self._waiting += sequences
      self._changed.notify()

  def cancel(self, sequences: Sequences[Sequence]) -> None:
    """Ends sequences, which emit nothing more after the current step."""
    with self._changed:
      for sequence in sequences:
        if sequence in self._waiting:
          self._waiting.remove(sequence)
        else:
          self._cancelled.append(sequence)
      self._changed.notify()

  def _run(self):
    try:
      with self._context():
        while self._turn():
          pass
    except Exception as error:  # of the device, such as its memory; nobody would ever be answered
      log.exception('the engine ends')
      self._fail_all(f'the engine failed: {type(error).__name__}; see the log of the server')
    else:
      self._fail_all(STOPPED)

  def _turn(self) -> bool:
    """Lets sequences enter and leave, and decodes one chunk; returns whether to go on."""
    with self._changed:
      self._changed.wait_for(lambda: self._waiting or self._cancelled or self._is_stopping or self.active)
      if self._is_stopping:
        return False
      cancelled, self._cancelled = self._cancelled, []
    for sequence in cancelled:
      self._engine.cancel(sequence)
    while self.active < self._engine.rows:
      with self._changed:
        if not self._waiting:
          break
        sequence = self._waiting.popleft()
      self._engine.add(sequence)
    if self.active:
      self._engine.step()
    return True

  def _fail_all(self, sentence: str) -> None:
    with self._changed:
      self.failure = sentence
      rest = [*self._engine.sequences, *self._waiting]
      self._waiting.clear()
    for sequence in rest:
      sequence.fail(sentence)
