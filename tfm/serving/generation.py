"""The texts that answer one request: from tokens that the engine's thread emits to pieces of text."""

import asyncio
import time
from collections.abc import AsyncIterator
from collections.abc import Sequence as Sequences
from typing import NamedTuple, Self

import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.streaming_text import text_decoder
from tfm.serving.engine import STOP, Sequence
from tfm.serving.worker import Worker


class GenerationFailed(Exception):
  """The engine could not continue a text; the message says why."""


class Piece(NamedTuple):
  """What a step adds to the text `index` of a request; `reason` says why it ended, '' if it goes on."""

  index: int
  text: str
  reason: str


class Choice:
  """The text of one sequence, up to the first of its stop sequences.

  Attributes:
    tokens: how many it has.
    reason: why it ended; '' if it goes on.
  """

  def __init__(self, tokenizer: Tokenizer, stops: Sequences[str]):
    self.tokens, self.reason = 0, ''
    self._decoder, self._stops, self._held = text_decoder(tokenizer), stops, ''

  def extend(self, tokens: np.ndarray, reason: str) -> str:
    """The text that further tokens add, without what may be the beginning of a stop sequence."""
    self.tokens += len(tokens)
    text = self._held + self._decoder.decode(tokens.tolist(), final=bool(reason))
    ends = [place for place in map(text.find, self._stops) if place >= 0]
    if ends:
      self.reason, self._held = STOP, ''
      return text[: min(ends)]
    self.reason = reason
    held = 0 if reason else max((overlap(text, stop) for stop in self._stops), default=0)
    self._held = text[len(text) - held :]
    return text[: len(text) - held]


def overlap(text: str, stop: str) -> int:
  """The length of the longest end of a text that begins a stop sequence."""
  return next(n for n in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:n]))


class Generation:
  """The sequences of one request; in a block `async with`, whose end cancels what is not finished.

  Attributes:
    choices: the text of each sequence.
    prompt_tokens: of all prompts; each counts once.
    submitted, first_token: when, by `time.monotonic`; `first_token` is None before there is one.
  """

  def __init__(self, worker: Worker, tokenizer: Tokenizer, stops: Sequences[str], timeout: float):
    self.choices: list[Choice] = []
    self.prompt_tokens, self.submitted, self.first_token = 0, 0.0, None
    self._worker, self._tokenizer, self._stops = worker, tokenizer, stops
    self._timeout, self._sequences = timeout, []
    self._loop, self._events = asyncio.get_running_loop(), asyncio.Queue()

  def add(self, **fields) -> None:
    """Adds a sequence by the fields of `Sequence` except its callbacks."""
    index = len(self.choices)
    self.prompt_tokens += len(fields['prompt']) * (fields['sample'] == 0)

    def send(*event):
      self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def emit(tokens, reason):
      send(index, tokens, reason)

    self._sequences.append(Sequence(**fields, emit=emit, fail=lambda sentence: send(index, None, sentence)))
    self.choices.append(Choice(self._tokenizer, self._stops))

  @property
  def new_tokens(self) -> int:
    """Of all texts so far."""
    return sum(choice.tokens for choice in self.choices)

  def submit(self) -> Self:
    """Queues the sequences.

    Raises:
      ValueError, QueueFull, Unavailable: as `Worker.submit`.
    """
    self.submitted = time.monotonic()
    self._worker.submit(self._sequences)
    return self

  async def __aenter__(self) -> Self:
    return self

  async def __aexit__(self, *error) -> None:
    self._worker.cancel([s for s, choice in zip(self._sequences, self.choices) if not choice.reason])

  async def pieces(self) -> AsyncIterator[Piece]:
    """Yields the texts piece by piece as they are generated, until all have ended.

    Raises:
      TimeoutError: after the timeout.
      GenerationFailed: if the engine fails.
    """
    while not all(choice.reason for choice in self.choices):
      remaining = self.submitted + self._timeout - time.monotonic()
      index, tokens, reason = await asyncio.wait_for(self._events.get(), remaining)
      choice = self.choices[index]
      if choice.reason:
        continue  # it had a stop sequence
      if tokens is None:
        raise GenerationFailed(reason)
      self.first_token = self.first_token or time.monotonic()
      text = choice.extend(tokens, reason)
      if choice.reason and not reason:
        self._worker.cancel([self._sequences[index]])
      if text or choice.reason:
        yield Piece(index, text, choice.reason)
