"""A config and every object that its spec strings describe, each built once."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

import tfm.data.packing
import tfm.data.tokenizers
import tfm.objectives
import tfm.optimizers
import tfm.training.sinks
from tfm import spec
from tfm.config.assemble.models import build_model
from tfm.config.field_errors import build_field, compile_pattern
from tfm.data.packing.protocol import Packing
from tfm.data.sources.protocol import Source, build_source
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.beam import PENALTIES, BeamSearch
from tfm.errors import require
from tfm.kernels.dense import Dense
from tfm.layers.lora import DOWN, SCALE, UP, Lora
from tfm.layers.parametrization import PARAMETRIZATIONS, Standard, rate_factors
from tfm.layers.quantization import QUANTIZATIONS, Quantization
from tfm.layers.unit_vectors import unit_axis
from tfm.models import flops
from tfm.models.remat import REMAT, Policy
from tfm.models.trunk import Trunk
from tfm.objectives.protocol import Objective
from tfm.optimizers.protocol import Optimizer
from tfm.parallel import compiler_options, sharding
from tfm.parallel.compiler_options import CompilerSettings
from tfm.parallel.host_memory import in_host_memory
from tfm.shapes import Array, Float
from tfm.training import state as states
from tfm.training.gradient_transforms import (
  MaskedTransformation,
  balance_experts,
  keep_unit_length,
  layerwise_decay,
  offload_state,
  path_name,
)
from tfm.training.gradient_transforms import optimizer as make_optimizer
from tfm.training.save_interval import INTERVALS, Interval
from tfm.training.schedule import SCHEDULES, schedule
from tfm.training.sinks.protocol import Sink
from tfm.training.state import State
from tfm.training.step import Step, compute_operands_once, reduce_gradients_in, train_step
from tfm.training.stop_rule import StopRule, parse_stop_rule


# Parameters of classification heads: they are new when a model without them is fine-tuned.
HEADS = 'classification', 'next_sentence'


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
  """What a resolved config describes: data, objective, model, optimizer, adapters, save intervals.

  This is the one place where the config's spec strings are parsed: each part is built on first use and then
  shared. What lies below takes an Experiment or its parts. The model needs the vocabulary, which is known
  only when the tokenizer is: `build_model` takes it.

  Attributes:
    config: resolved (`tfm.config.resolve`); it must not change afterwards.

  Raises (from every part):
    ValueError: one sentence with the field, its value and what to use.
  """

  config: ConfigDict

  @functools.cached_property
  def source(self) -> Source:
    """The documents to train on."""
    named = {
      name: build_field(f'data.sources.{name}', build_source, text)
      for name, text in self.config.data.sources.items()
      if text
    }
    return build_field('data.source', build_source, self.config.data.source, named)

  @functools.cached_property
  def tokenizer(self) -> Tokenizer | None:
    """The tokenizer, not yet trained; None for images without texts."""
    if self.source.image_shape and 'text' not in self.source.fields:
      return None
    return build_field(
      'data.tokenizer', spec.build, self.config.data.tokenizer, tfm.data.tokenizers, Tokenizer
    )

  @functools.cached_property
  def source_tokenizer(self) -> Tokenizer | None:
    """The source tokenizer of pairs, not yet trained; None where source and target share one."""
    text = self.config.data.source_tokenizer
    if text is None:
      return None
    return build_field('data.source_tokenizer', spec.build, text, tfm.data.tokenizers, Tokenizer)

  @functools.cached_property
  def packing(self) -> Packing:
    """How documents become rows."""
    return build_field('data.packing', spec.build, self.config.data.packing, tfm.data.packing, Packing)

  @functools.cached_property
  def objective(self) -> Objective:
    """The loss, and what it needs from data and model."""
    config = self.config
    return build_field(
      'objective',
      spec.build,
      config.objective,
      tfm.objectives,
      Objective,
      chunk=config.training.loss_chunk,
      layout=self.packing.layout,
      recurrence=config.training.recurrence_length,
      shape=self.source.image_shape,
    )

  @functools.cached_property
  def rules(self) -> sharding.Rules:
    """Logical axis → mesh axes."""
    return sharding.parse_rules(self.config.rules)

  @functools.cached_property
  def lora(self) -> Lora | None:
    """The adapters; None without any."""
    rank, targets = self.config.lora.rank, self.config.lora.targets
    require(rank >= 0, f'config.lora.rank={rank} must be 0 (none) or more')
    compile_pattern('lora.targets', targets)
    return Lora(rank, self.config.lora.alpha, targets) if rank else None

  @functools.cached_property
  def frozen_pattern(self) -> str:
    """A regular expression of the paths of parameters that are not trained; '' for none."""
    frozen = self.config.optimizer.frozen
    if not self.config.lora.rank:
      return frozen
    others = rf'^(?!{"|".join(HEADS)})(?!.*/({DOWN}|{UP})$)'
    return '|'.join([*([f'({frozen})'] if frozen else []), f'({others})', f'/{SCALE}$'])

  @functools.cached_property
  def optimizer(self) -> MaskedTransformation:
    """The optimizer at the config's learning rate."""
    return self._optimizer_and_rate[0]

  @functools.cached_property
  def learning_rate(self) -> optax.Schedule:
    """The learning rate by the number of steps done."""
    return self._optimizer_and_rate[1]

  @functools.cached_property
  def _optimizer_and_rate(self) -> tuple[MaskedTransformation, optax.Schedule]:
    return self.build_optimizer()

  def build_optimizer(
    self, peak: Float[Array, ''] | None = None
  ) -> tuple[MaskedTransformation, optax.Schedule]:
    """The optimizer and its learning-rate schedule; `peak` is the config's learning rate by default."""
    fields, model = self.config.optimizer, self.config.model
    peak = fields.learning_rate if peak is None else peak
    factor = build_field('optimizer.schedule', spec.build_from_table, fields.schedule, SCHEDULES)
    width = round(model.width / self.parametrization.multiplier)
    rate = schedule(factor, peak, fields.warmup, self.config.training.steps, width)
    method = build_field('optimizer.name', spec.build, fields.name, tfm.optimizers, Optimizer)
    decay = method.decay(fields.learning_rate)  # no schedule exceeds that
    require(
      decay < 1,
      f'config.optimizer.name={fields.name} at learning_rate={fields.learning_rate} takes {decay:.3g} of '
      'each parameter away in a step, which leaves none; use a smaller weight_decay',
    )
    require(
      0 < fields.layer_decay <= 1,
      f'config.optimizer.layer_decay={fields.layer_decay} must be above 0 and at most 1; 1.0 is no decay',
    )
    for field in ('no_decay', 'frozen'):
      compile_pattern(f'optimizer.{field}', fields[field])
    factors = []
    if fields.layer_decay != 1:
      stacks = [part for part in (model, model.encoder) if part]
      sizes = [size for part in stacks for size in (part.layers, max(1, len(part.pattern)))]
      factors.append(layerwise_decay(fields.layer_decay, *sizes))
    if self.parametrization.depends_on_width:
      boxes = self._parameters
      rates = build_field(
        'optimizer.name', rate_factors, self.parametrization, boxes, method.normalizes_updates, fields.name
      )
      factors.append(lambda path, x: jnp.float32(rates[path]))
    optimizer = make_optimizer(method, rate, fields.clip, fields.no_decay, self.frozen_pattern, factors)
    optimizer = balance_experts(optimizer, fields.balance_rate)
    if self.parametrization.has_unit_weights:
      axes = {path: unit_axis(x.names) for path, x in boxes.items()}
      optimizer = keep_unit_length(optimizer, {path: axis for path, axis in axes.items() if axis is not None})
    return offload_state(optimizer) if fields.offload else optimizer, rate

  @functools.cached_property
  def _parameters(self) -> dict[str, sharding.Parameter]:
    """Path → the abstract parameter, for rules that depend on its logical axes."""
    # Kernels have no parameters, and the configured one may not be available on this machine.
    model = flops.with_kernel(self.build_model(vocab=1, source_vocab=1), Dense())
    make = functools.partial(states.init_params, model, batch=1, length=self.config.data.length)
    with nn.logical_axis_rules(()):
      boxes = states.abstract_state(make)
    boxed, _ = jax.tree_util.tree_flatten_with_path(
      boxes, is_leaf=lambda x: isinstance(x, sharding.Parameter)
    )
    return {path_name(path): x for path, x in boxed}

  @functools.cached_property
  def parametrization(self) -> Standard:
    """How initial values, learning rates and multipliers depend on the width."""
    m = self.config.model
    made = build_field(
      'model.parametrization', spec.build_from_table, m.parametrization, PARAMETRIZATIONS, width=m.width
    )
    require(
      not (made.depends_on_width and (self.lora or m.embedding_width != m.width)),
      f'config.model.parametrization={m.parametrization!r} has no rule for adapters and embeddings of '
      'another width; leave config.lora.rank at 0 and config.model.embedding_width out',
    )
    return made

  @functools.cached_property
  def save_intervals(self) -> tuple[Interval, Interval]:
    """When checkpoints are saved: shared ones, and local ones."""
    return tuple(
      build_field(f'training.{field}', spec.build_from_table, self.config.training[field], INTERVALS)
      for field in ('save_every', 'save_local_every')
    )

  @functools.cached_property
  def stop_rule(self) -> StopRule:
    """By which validations a run ends before its last step."""
    return build_field('training.stop_when', parse_stop_rule, self.config.training.stop_when)

  @functools.cached_property
  def compiler(self) -> CompilerSettings:
    """The options with which the training step is compiled."""
    flags, options = self.config.compiler.flags, self.config.compiler.options
    return CompilerSettings(
      build_field('compiler.flags', compiler_options.parse_presets, flags),
      build_field('compiler.options', compiler_options.parse_options, options),
    )

  @functools.cached_property
  def sinks(self) -> tuple[Sink, ...]:
    """Where metrics go besides metrics.jsonl."""
    return tuple(
      build_field('training.sinks', spec.build, text, tfm.training.sinks, Sink)
      for text in self.config.training.sinks
    )

  @functools.cached_property
  def remat(self) -> Policy | None:
    """What the backward pass stores of a layer; None: everything."""
    return build_field('model.remat', spec.build_from_table, self.config.model.remat, REMAT)

  @functools.cached_property
  def quantization(self) -> Quantization | None:
    """How the projections of blocks are computed in integers; None: not."""
    return build_field(
      'model.quantization', spec.build_from_table, self.config.model.quantization, QUANTIZATIONS
    )

  @functools.cached_property
  def beam_search(self) -> BeamSearch:
    """The settings of beam search."""
    decoding = self.config.decoding
    penalty = build_field(
      'decoding.length_penalty', spec.build_from_table, decoding.length_penalty, PENALTIES
    )
    return BeamSearch(decoding.beams, penalty, decoding.stopping)

  def build_model(self, vocab: int, causal: bool = True, source_vocab: int = 0) -> Trunk:
    """The model for a tokenizer of `vocab` tokens, to which the objective's special tokens are added.

    Args:
      vocab: 0 where there is none, as for images.
      causal: whether a decoder's mask that lets a token attend to later ones is an error.
      source_vocab: tokens of the source, where it has a vocabulary of its own.
    """
    return build_model(self, vocab, causal, source_vocab)

  def build_init(self, model: Trunk) -> Callable[[Array], State]:
    """A pure function: seed key → the state of a model before its first step; see `states.init`."""
    config, training = self.config, self.config.training
    return states.init(
      model,
      self.optimizer,
      (training.batch_size, config.data.length),
      config.model.dtype == 'float16',
      self.lora,
      training.skip_spikes > 0,
    )

  def build_step(self, model: Trunk, peak: Float[Array, ''] | None = None) -> Step:
    """The training step of a model, not jitted; `peak` as in `build_optimizer`."""
    training, (optimizer, rate) = self.config.training, self.build_optimizer(peak)
    step = train_step(
      model, self.objective, optimizer, rate, training.gradient_accumulation, training.skip_spikes
    )
    return reduce_gradients_in(training.gradient_reduction, compute_operands_once(self.compiler, step))

  def on_device(self, boxed: State) -> State:
    """The part of a state that is on the devices between updates."""
    return boxed.replace(opt_state=()) if self.config.optimizer.offload else boxed

  def state_shardings(self, boxed: State, mesh: Mesh) -> State:
    """The sharding of each leaf of a state on a mesh."""
    shardings = sharding.named_shardings(boxed, mesh, self.rules)
    if not self.config.optimizer.offload:
      return shardings
    return shardings.replace(opt_state=in_host_memory(shardings.opt_state))
