"""The queue and its thread: what waits, leaves, and fails."""

import contextlib
import threading

import numpy as np
import pytest

from tests.serving.server import until
from tfm.decoding.sampling import Sampling
from tfm.serving.engine import Sequence
from tfm.serving.service import QueueFull, Unavailable
from tfm.serving.worker import Worker


class Engine:
  """An engine of two rows whose step waits until the test allows it, and ends the texts in its rows."""

  rows = 2

  def __init__(self):
    self.sequences, self.allowed, self.error = [], threading.Semaphore(0), None

  @property
  def active(self):
    return len(self.sequences)

  def validate(self, sequence):
    if not len(sequence.prompt):
      raise ValueError('prompt is empty')

  def add(self, sequence):
    self.sequences.append(sequence)

  def cancel(self, sequence):
    if sequence in self.sequences:
      self.sequences.remove(sequence)

  def step(self):
    self.allowed.acquire()
    if self.error:
      raise self.error
    ended, self.sequences = self.sequences, []
    for sequence in ended:
      sequence.emit(np.array([1]), 'length')


class Texts:
  """Sequences by name, and what became of them, in order."""

  def __init__(self):
    self.events, self._changed = [], threading.Condition()

  def sequence(self, name, prompt=(1,)):
    return Sequence(
      np.array(prompt),
      1,
      Sampling(),
      0,
      0,
      lambda tokens, reason: self._note(f'{name} {reason}'),
      lambda sentence: self._note(f'{name}: {sentence}'),
    )

  def _note(self, event):
    with self._changed:
      self.events.append(event)
      self._changed.notify()

  def wait(self, count):
    with self._changed:
      assert self._changed.wait_for(lambda: len(self.events) >= count, 10)
    return self.events


@pytest.fixture
def texts():
  return Texts()


@pytest.fixture
def worker():
  worker = Worker(Engine(), 3, contextlib.nullcontext)
  worker.start()
  yield worker
  worker._engine.allowed.release(100)
  worker.stop()


def test_sequences_take_rows_in_their_order(worker, texts):
  worker.submit([texts.sequence(name) for name in 'ab'])
  until(lambda: worker.active == 2)
  worker.submit([texts.sequence(name) for name in 'cde'])
  assert (worker.active, worker.waiting) == (2, 3)
  worker._engine.allowed.release(3)
  assert texts.wait(5) == ['a length', 'b length', 'c length', 'd length', 'e length']


def test_a_full_queue_refuses_all_or_nothing(worker, texts):
  worker.submit([texts.sequence(name) for name in 'ab'])
  until(lambda: worker.active == 2)
  worker.submit([texts.sequence(name) for name in 'cd'])
  with pytest.raises(QueueFull, match='2 texts wait and the queue has room for 3; try again later'):
    worker.submit([texts.sequence(name) for name in 'ef'])
  worker.submit([texts.sequence('g')])
  worker._engine.allowed.release(3)
  assert [event[0] for event in texts.wait(5)] == [*'abcdg']


def test_an_invalid_sequence_refuses_its_request(worker, texts):
  with pytest.raises(ValueError, match='prompt is empty'):
    worker.submit([texts.sequence('a'), texts.sequence('b', ())])
  assert worker.waiting == 0


def test_cancelled_sequences_leave_the_queue_and_their_rows(worker, texts):
  running, waiting = [[texts.sequence(name) for name in names] for names in ('ab', 'cd')]
  worker.submit(running)
  until(lambda: worker.active == 2)
  worker.submit(waiting)
  worker.cancel([waiting[0]])
  assert worker.waiting == 1
  worker._engine.allowed.release(1)
  texts.wait(2)
  until(lambda: worker.active == 1)  # d
  worker.cancel([waiting[1]])
  worker.submit([texts.sequence('e')])
  worker._engine.allowed.release(3)
  # d was in the middle of a step, after which it might still have emitted.
  until(lambda: 'e length' in texts.events)
  assert 'c length' not in texts.events and 'd length' in texts.events


def test_a_failing_engine_fails_every_request_and_is_no_longer_healthy(worker, texts):
  worker._engine.error = MemoryError('of the device')
  worker.submit([texts.sequence(name) for name in 'abc'])
  worker._engine.allowed.release(1)
  sentence = 'the engine failed: MemoryError; see the log of the server'
  assert sorted(texts.wait(3)) == [f'{name}: {sentence}' for name in 'abc']
  assert worker.failure == sentence
  with pytest.raises(Unavailable, match=sentence):
    worker.submit([texts.sequence('d')])


def test_at_the_end_what_waits_fails_with_a_sentence(texts):
  worker = Worker(Engine(), 3, contextlib.nullcontext)
  worker.start()
  worker.submit([texts.sequence(name) for name in 'abc'])
  until(lambda: worker.active == 2)
  stopping = threading.Thread(target=worker.stop)
  stopping.start()
  until(lambda: worker._is_stopping)
  worker._engine.allowed.release(1)
  stopping.join()
  assert texts.events == [
    'a length',
    'b length',
    'c: the server stops; send the request again to another one',
  ]
