"""What a config will need: worked out from shapes, before anything is allocated or compiled, but for its time."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType
from ml_collections import ConfigDict

from tfm.config import assemble, validate
from tfm.config.schema import parts
from tfm.data import pipeline
from tfm.data.packing.protocol import Row
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.evaluation.cost import StepCost, in_turns, repeated, step_cost
from tfm.models import memory
from tfm.models.trunk import Trunk
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.shapes import PyTree
from tfm.training import state as states
from tfm.training import together
from tfm.training.step import train_step


def devices(config: ConfigDict) -> int:
  """As many as the mesh of a config names, or as are here."""
  named, here = config.mesh.values(), jax.device_count()
  fixed = math.prod(size for size in named if size != -1)
  return here if fixed < 1 or -1 in named and here % fixed == 0 else fixed


def abstract_mesh(config: ConfigDict, devices: int) -> AbstractMesh:
  """The mesh of a config, over devices that need not be here."""
  sizes = meshes.resolve(config.mesh.to_dict(), devices)
  return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def vocabularies(config: ConfigDict) -> tuple[int, int]:
  """Tokens there are, and those of the source where they are others (0: they are not); the text is read only
  where nothing else tells.
  """
  tokenizer, source_tokenizer = assemble.tokenizer(config), assemble.source_tokenizer(config)
  vocab = known_vocabulary(tokenizer), known_vocabulary(source_tokenizer)
  if None not in vocab:
    return vocab
  text = pipeline.open_text(assemble.source(config), tokenizer, source_tokenizer=source_tokenizer)
  return text.tokenizer.vocab_size, text.source_tokenizer.vocab_size if source_tokenizer else 0


def known_vocabulary(tokenizer: Tokenizer | None) -> int | None:
  """Tokens there are, where the tokenizer's spec tells; 0 without one."""
  if tokenizer is None:
    return 0
  if not (tokenizer.trained or tokenizer.learns):
    tokenizer = tokenizer.train(())
  return tokenizer.vocab_size if tokenizer.trained else getattr(tokenizer, 'size', None)


def abstract_state(config: ConfigDict, model: Trunk) -> states.State:
  """Shapes and boxes of everything that training carries."""
  optimizer, _ = assemble.optimizer(config)
  return states.abstract(
    states.init(
      model,
      optimizer,
      config.training.batch_size,
      config.data.length,
      config.model.dtype == 'float16',
      assemble.lora(config),
    )
  )


def memory_by_kind(
  config: ConfigDict,
  vocab: int,
  source_vocab: int,
  boxed: states.State,
  mesh: AbstractMesh,
  rules: sharding.Rules,
) -> list[tuple[str, int, str]]:
  """(kind, bytes of one device, how they are known)."""
  params = memory.on_device(boxed.params, mesh, rules)
  optimizer = memory.on_device(boxed.opt_state, mesh, rules)
  alive = activations(config, vocab, source_vocab, mesh, rules, rows_at_once(config, mesh, rules), params)
  estimate = f'estimate: the most that is alive at once in the gradient, remat {config.model.remat}'
  gradients = ('gradients', params, 'float32')
  if config.training.accumulation > 1:
    gradients = 'gradients', 2 * params, "float32: a microbatch's and their sum"
  return [
    ('parameters', params, 'float32'),
    gradients,
    ('optimizer', optimizer, config.optimizer.name),
    ('activations', alive, estimate),
  ]


def rows_at_once(config: ConfigDict, mesh: AbstractMesh, rules: sharding.Rules) -> int:
  """Rows of a microbatch on one device."""
  return config.training.batch_size // config.training.accumulation // ways(mesh, rules, 'batch')


def activations(
  config: ConfigDict,
  vocab: int,
  source_vocab: int,
  mesh: AbstractMesh,
  rules: sharding.Rules,
  rows: int,
  held: int,
) -> int:
  """`memory.activations` of what one device computes: its rows, tokens, heads, feed-forward and vocabulary.

  What a mixer sizes by itself is taken whole. `held` is the bytes of the parameters on one device.
  """
  part = config.copy_and_resolve_references()
  # Tokens of all devices, of which this one has its rows'.
  part.training.loss_chunk = -(-part.training.loss_chunk // ways(mesh, rules, 'batch'))
  if not assemble.source(config).shape:
    part.data.length //= ways(mesh, rules, 'length')
  for b in parts(part).values():
    b.heads = max(1, b.heads // ways(mesh, rules, 'heads'))
    b.kv_heads = math.gcd(b.heads, max(1, b.kv_heads // ways(mesh, rules, 'kv_heads')))
    if 'feed_forward_width' in b:
      b.feed_forward_width //= ways(mesh, rules, 'mlp')
  vocab, source_vocab = (-(-v // ways(mesh, rules, 'vocab')) for v in (vocab, source_vocab))
  plan, model = validate.schedule(config, mesh.shape), assemble.model(part, vocab, source_vocab=source_vocab)
  if plan is None:
    return alive(part, model, rows, held)
  # What a stage keeps of its layers, of every iteration and few rows, and what is of no stage, and of all rows.
  few = max(1, rows // plan.microbatches)
  part = with_layers(part, plan.iterations / (plan.stages * plan.repeats))
  encoder = getattr(model, 'encoder', None)
  outside = model.clone(
    stack=Through, **{} if encoder is None else dict(encoder=functools.partial(encoder, stack=Through))
  )
  return alive(part, assemble.model(part, vocab, source_vocab=source_vocab), few, held) + max(
    0, alive(part, outside, rows, held) - alive(part, outside, few, held)
  )


class Through(nn.Module):
  """No layers, in the place of a stack."""

  def __call__(self, x, memory, context, caches):
    return x, caches


def with_layers(config: ConfigDict, times: float) -> ConfigDict:
  """A config with so many times the layers, at least one turn of each pattern."""
  config = config.copy_and_resolve_references()
  for part in parts(config).values():
    if 'layers' in part:
      turn = max(1, len(part.pattern))
      part.layers = turn * max(1, round(part.layers // turn * times))
  return config


def alive(part: ConfigDict, model: Trunk, rows: int, held: int) -> int:
  """`memory.activations` of a model under a config as it stands."""
  params = nn.unbox(abstract_state(part, model).params)
  objective = assemble.objective(part)
  return memory.activations(
    functools.partial(loss, objective, model),
    params,
    functools.partial(batch, objective.padding(part.data.length)),
    rows,
    held / memory.whole(params),
  )


def ways(mesh: AbstractMesh, rules: sharding.Rules, axis: str) -> int:
  """How many parts a logical axis is cut into."""
  return math.prod(mesh.shape[name] for name in dict(rules).get(axis, ()))


def loss(objective, model: Trunk, params, rows):
  """What training differentiates, dropout on."""
  return objective(model, params, rows, jax.random.key(0))[0]


def batch(row: Row, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """The shapes of a batch of rows like one."""
  return {field: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype) for field, x in row.items()}


def step(config: ConfigDict, seeds: int = 1, rounds: int = 3) -> StepCost:
  """What a training step of some seeds together costs, measured on a first batch; it is compiled for that."""
  with prepared(config, seeds) as (run, state, batch):
    return step_cost(run, state, batch, rounds)


def beside(
  base: ConfigDict, others: Mapping[str, ConfigDict], seeds: int = 1, rounds: int = 11
) -> dict[str, tuple[float, float]]:
  """Seconds of a step of each of some configs, and of the base's beside it, in turns; as `step`."""
  found = {}
  with prepared(base, seeds) as of_base:
    first, _ = repeated(*of_base)
  for name, config in others.items():
    with prepared(config, seeds) as of_other:
      second, _ = repeated(*of_other)
      ours, theirs = in_turns((first, second), rounds)
      found[name] = theirs, ours
  return found


@contextlib.contextmanager
def prepared(config: ConfigDict, seeds: int) -> Iterator[tuple[Callable, PyTree, PyTree]]:
  """The jitted training step of some seeds together, the state that it begins with, and its first batch."""
  data = pipeline.open_data(
    assemble.source(config), assemble.tokenizer(config), source_tokenizer=assemble.source_tokenizer(config)
  )
  vocab, source_vocab = (one.vocab_size if one else 0 for one in (data.tokenizer, data.source_tokenizer))
  model, objective = assemble.model(config, vocab, source_vocab=source_vocab), assemble.objective(config)
  optimizer, rate = assemble.optimizer(config)
  make = states.init(
    model,
    optimizer,
    config.training.batch_size,
    config.data.length,
    config.model.dtype == 'float16',
    assemble.lora(config),
  )
  rows = objective.rows(assemble.packing(config), data.tokens('train'), config.data.length, 0, data.tokenizer)
  batch = pipeline.Batches(rows, config.training.batch_size, 0, 1)[0]
  mesh, rules = together.mesh(seeds, jax.devices()), sharding.parse_rules(config.rules)
  born = states.born(make, range(seeds), states.shardings(states.abstract(make), mesh, rules), mesh, rules)
  state = together.stack(born, mesh)
  batch = {name: jax.device_put(np.stack([x] * seeds), together.stacked(mesh)) for name, x in batch.items()}
  with sharding.context(mesh, rules):
    one = train_step(model, objective, optimizer, rate, config.training.accumulation)
    run = together.step(lambda state, batch, _: one(state, batch), mesh, np.zeros(seeds, np.float32))
    yield jax.jit(run, donate_argnums=0), state, batch
