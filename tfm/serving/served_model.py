"""The model that a server continues texts with."""

import dataclasses
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from tfm.decoding import loop
from tfm.decoding.sampling import Sampling
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import require
from tfm.hf import text_length
from tfm.hf.loaded_model import LoadedModel
from tfm.models import memory
from tfm.parallel import sharding
from tfm.serving import chat_template
from tfm.serving.engine import Engine, allocate_state
from tfm.serving.engine import Sequence as EngineSequence
from tfm.serving.requests import Message, require_text
from tfm.shapes import Int
from tfm.spec import MAX_SIZE


@dataclasses.dataclass(frozen=True)
class ServedModel:
  """A decoder with its engine.

  Attributes:
    name: by which clients ask for it.
    run: with the tokenizer.
    engine: that continues its texts.
    template: of conversations; None: there are none.
  """

  name: str
  run: LoadedModel
  engine: Engine
  template: Any = None

  def encode(self, text: str) -> Int[np.ndarray, 'T']:
    """The tokens of a prompt, as of `tfm generate`.

    Raises:
      ValueError: as `require_text`.
    """
    return self.run.encode(require_text(text))

  def encode_chat(self, messages: Sequence[Message]) -> Int[np.ndarray, 'T']:
    """The tokens of a conversation.

    Raises:
      ValueError: without a template, or if it refuses the messages.
    """
    require(
      self.template is not None,
      f'{self.name} has no chat template; start the server with --chat_template=FILE, or use /v1/completions',
    )
    tokenizer = self.run.tokenizer
    pieces = chat_template.render(self.template, messages, tokenizer)
    ids = [
      (tokenizer.encode_markup if is_markup else tokenizer.encode_plain)(require_text(text))
      for text, is_markup in pieces
    ]
    tokens = [int(i) for piece in ids for i in piece]
    has_begin = tokens[:1] == [tokenizer.bos_id]  # of a template that spells it
    return np.array(tokens if has_begin else [tokenizer.bos_id, *tokens], np.int32)

  def default_max_tokens(self, prompt: Int[np.ndarray, 'T']) -> int:
    """The new tokens of a request that does not say how many: as of `tfm generate`, or what there is room
    for."""
    room = loop.count_new_tokens(self.engine.length, len(prompt))
    return max(1, min(room, loop.default_max_tokens(self.run.model, [prompt])))

  def context(self) -> AbstractContextManager:
    """The mesh of the model; the engine runs in it."""
    return sharding.context(self.run.mesh, self.run.rules)


def serve_model(
  run: LoadedModel, name: str, rows: int, length: int | None = None, template: str | None = None
) -> ServedModel:
  """Prepares a run, and compiles what its requests need.

  Args:
    rows: texts that are continued at once.
    length: the most tokens of a text that are read; None: `default_length`.
    template: the file of a chat template.

  Raises:
    ValueError: for a model that does not continue texts one token after another.
  """
  require(
    not (run.published and text_length.parts_by_length(run.config)),
    'the rotary scaling of the model follows the length of each text, so that texts cannot share a batch; '
    'use tfm generate',
  )
  longest = default_length(run) if length is None else length
  for limit_of, limit in loop.list_position_limits(run.model.positions):
    require(longest <= limit, f'--length={longest} exceeds the {limit} positions of {limit_of}; use fewer')
  require(longest >= 2, f'--length={longest} must be at least 2')
  require(1 <= rows <= MAX_SIZE, f'--rows={rows} must be at least 1 and at most {MAX_SIZE:,}')
  loaded_template = template and chat_template.load_template(template)
  with sharding.context(run.mesh, run.rules):
    model, params = unroll_layers(run.model, run.params)
    state = jax.eval_shape(functools.partial(allocate_state, model, rows, longest))
    memory.require_capacity(
      {f'caches of {rows:,} rows of {longest:,} tokens': memory.total_bytes(state)},
      'use a smaller --rows or --length',
    )
    engine = Engine(model, params, rows, longest, run.tokenizer.eos_id)
    warm_up(engine, np.full(min(sum(loop.PREFILL_WIDTHS) + 1, longest), run.tokenizer.eos_id, np.int32))
  return ServedModel(name, run, engine, loaded_template)


def default_length(run: LoadedModel) -> int:
  """As many positions as the model has, or else a row of its training and as many new tokens as
  `tfm generate` adds."""
  limits = [limit for _, limit in loop.list_position_limits(run.model.positions)]
  return min(limits, default=run.config.data.length + loop.MAX_TOKENS)


def warm_up(engine: Engine, prompt: Int[np.ndarray, 'T']) -> None:
  """Continues a prompt that is read in pieces of every width, so that no request waits for the compiler."""
  failures = []
  engine.add(
    EngineSequence(prompt, 1, Sampling(), 0, 0, emit=lambda tokens, reason: None, fail=failures.append)
  )
  while engine.active:
    engine.step()
  require(not failures, ''.join(failures))
