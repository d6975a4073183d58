"""What a run is made of beside its model: data, objective, optimizer, adapters, cadence."""

import re
from collections.abc import Callable

import optax
from ml_collections import ConfigDict

import tfm.data.packing
import tfm.data.sources
import tfm.data.tokenizers
import tfm.objectives
from tfm import spec
from tfm.config.assemble.named import named
from tfm.data.packing.protocol import Packing
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.beam import PENALTIES
from tfm.errors import require
from tfm.layers.lora import DOWN, SCALE, UP, Lora
from tfm.objectives.protocol import Objective
from tfm.shapes import Array, Float
from tfm.training.interval import INTERVALS, Interval
from tfm.training.optimizer import OPTIMIZERS, Optimizer, by_depth
from tfm.training.optimizer import optimizer as make_optimizer
from tfm.training.schedule import SCHEDULES, schedule


# The parameters of what classifies: new to a model that did not.
HEADS = 'classification', 'next_sentence'


def source(config: ConfigDict) -> Source:
  """The documents to learn from."""
  return named('data.source', spec.build, config.data.source, tfm.data.sources, Source)


def tokenizer(config: ConfigDict) -> Tokenizer | None:
  """The tokenizer, not yet trained; None for images."""
  return (
    None
    if source(config).image_shape
    else named('data.tokenizer', spec.build, config.data.tokenizer, tfm.data.tokenizers, Tokenizer)
  )


def source_tokenizer(config: ConfigDict) -> Tokenizer | None:
  """The tokenizer of the source of a pair, not yet trained; None where the target's is the source's too."""
  text = config.data.source_tokenizer
  return (
    None if text is None else named('data.source_tokenizer', spec.build, text, tfm.data.tokenizers, Tokenizer)
  )


def packing(config: ConfigDict) -> Packing:
  """How documents become rows."""
  return named('data.packing', spec.build, config.data.packing, tfm.data.packing, Packing)


def objective(config: ConfigDict) -> Objective:
  """What is minimised."""
  return named(
    'objective',
    spec.build,
    config.objective,
    tfm.objectives,
    Objective,
    chunk=config.training.loss_chunk,
    layout=packing(config).layout,
    recurrence=config.training.recurrence_length,
    shape=source(config).image_shape,
  )


def optimizer(config: ConfigDict, peak: Float[Array, ''] | None = None) -> tuple[Optimizer, optax.Schedule]:
  """The optimizer, and its learning rate by steps done; `peak` is the config's learning rate unless given."""
  o = config.optimizer
  peak = o.learning_rate if peak is None else peak
  factor = named('optimizer.schedule', spec.choose, o.schedule, SCHEDULES)
  rate = schedule(factor, peak, o.warmup, config.training.steps, config.model.width)
  maker = named('optimizer.name', spec.choose, o.name, OPTIMIZERS)
  require(
    0 < o.layer_decay <= 1,
    f'config.optimizer.layer_decay={o.layer_decay} must lie above 0 and not above 1; 1.0 is none',
  )
  for field in ('no_decay', 'frozen'):
    try:
      re.compile(o[field])
    except re.error as error:
      raise ValueError(f'config.optimizer.{field}={o[field]!r} is no regular expression: {error}') from error
  m, encoder = config.model, config.model.encoder
  factor = (
    None
    if o.layer_decay == 1
    else by_depth(
      o.layer_decay,
      m.layers,
      max(1, len(m.pattern)),
      *((encoder.layers, max(1, len(encoder.pattern))) if encoder else ()),
    )
  )
  return make_optimizer(maker, rate, o.clip, o.no_decay, frozen(config), factor), rate


def frozen(config: ConfigDict) -> str:
  """A regular expression of the parameters that are not trained; '' for none."""
  if not config.lora.rank:
    return config.optimizer.frozen
  own = config.optimizer.frozen or rf'^(?!{"|".join(HEADS)})(?!.*/({DOWN}|{UP})$)'
  return f'({own})|/{SCALE}$'


def lora(config: ConfigDict) -> Lora | None:
  """The adapters that a config asks for.

  Raises:
    ValueError: for a rank below 0, or targets that are no regular expression.
  """
  rank, targets = config.lora.rank, config.lora.targets
  require(rank >= 0, f'config.lora.rank={rank} must be 0 (none) or more')
  try:
    re.compile(targets)
  except re.error as error:
    raise ValueError(f'config.lora.targets={targets!r} is no regular expression: {error}') from error
  return Lora(rank, config.lora.alpha, targets) if rank else None


def intervals(config: ConfigDict) -> tuple[Interval, Interval]:
  """When checkpoints are saved: those that last, and those near at hand."""
  return tuple(
    named(f'training.{field}', spec.choose, config.training[field], INTERVALS)
    for field in ('save_every', 'save_local_every')
  )


def penalty(config: ConfigDict) -> Callable:
  """The penalty of a hypothesis's length in beam search."""
  return named('decoding.length_penalty', spec.choose, config.decoding.length_penalty, PENALTIES)
