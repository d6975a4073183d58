"""Requests that are computed as a whole, one after another: those of encoders and of translators."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tfm.serving.metrics import Metrics
from tfm.serving.service import QueueFull, Refusal, Service


class CallService(Service):
  """Calls functions in one thread, in the order of the requests, of which `queue` may wait.

  A request whose client leaves, or that is late, is not computed if it still waits.
  """

  def __init__(self, name: str, queue: int, timeout: float):
    super().__init__(name)
    self.waiting = self.active = 0
    self._queue, self._timeout = queue, timeout
    self._thread = ThreadPoolExecutor(1, 'model')

  def stop(self):
    self._thread.shutdown(cancel_futures=True)

  async def call(self, metrics: Metrics, prompt_tokens: int, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function, counted as a request.

    Raises:
      QueueFull: if there is no room.
      Refusal: after the timeout.
    """
    if self.waiting >= self._queue:
      raise QueueFull(
        f'{self.waiting} requests wait and the queue has room for {self._queue}; try again later'
      )
    start, outcome = time.monotonic(), 'failed'

    def run():
      self.waiting, self.active = self.waiting - 1, 1
      try:
        return function(*args)
      finally:
        self.active = 0

    self.waiting += 1
    future = self._thread.submit(run)
    try:
      result = await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
      outcome = 'finished'
      return result
    except TimeoutError:
      outcome = 'timeout'
      sentence = f'the request took longer than {self._timeout:g} s (--timeout); send less at once, or later'
      raise Refusal(504, sentence, code='timeout') from None
    except asyncio.CancelledError:
      outcome = 'cancelled'
      raise
    finally:
      if future.cancelled():  # before it ran
        self.waiting -= 1
      metrics.record(outcome, start, prompt_tokens, 0, None)
