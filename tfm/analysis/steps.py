"""The steps of a run, the very functions that train and decode, lowered for a mesh: shapes and shardings, no arrays."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.config import assemble, validate
from tfm.decoding import loop
from tfm.decoding.sampling import Sampling, row_keys
from tfm.decoding.unrolled import unscanned
from tfm.errors import require
from tfm.kernels.dense import Dense
from tfm.models import flops, memory
from tfm.models.decoder import Decoder
from tfm.models.trunk import Trunk
from tfm.parallel import sharding
from tfm.training import state as states
from tfm.training.checkpoint import target
from tfm.training.step import jitted, train_step


@dataclasses.dataclass(frozen=True)
class Step:
  """What is to be compiled.

  Attributes:
    name: 'training' or 'decoding'.
    lowered: for the devices of the mesh.
    arguments: bytes of one device, by what they are.
    tokens: that a step of all devices learns from, or writes.
    flops: model FLOPs of a step of all devices (`tfm.models.flops`), without what is computed again.
    pairs: those of them over query-key pairs, with what remat computes again: custom kernels do not tell theirs.
  """

  name: str
  lowered: jax.stages.Lowered
  arguments: dict[str, int]
  tokens: int
  flops: float
  pairs: float


@dataclasses.dataclass(frozen=True)
class PlanRequest:
  """A config with its vocabularies, which are not read from the data."""

  config: ConfigDict
  vocab: int
  source_vocab: int

  @classmethod
  def from_config(cls, config: ConfigDict, vocab: int | None) -> 'PlanRequest':
    """With `vocab` tokens where it is given, of source and target, else as many as the tokenizers' specs tell.

    Raises:
      ValueError: if they do not.
    """
    found = []
    for field, one in (
      ('tokenizer', assemble.tokenizer(config)),
      ('source_tokenizer', assemble.source_tokenizer(config)),
    ):
      known = estimate.vocabulary_size_of(one)
      known = vocab if one is not None and vocab is not None else known
      require(
        known is not None,
        f'config.data.{field}={config.data[field]!r} learns its vocabulary from the text, which is '
        'not read here; --vocab=N tells how many tokens there are',
      )
      found.append(known)
    require(vocab is None or vocab >= 1, f'--vocab={vocab} must be at least 1')
    return cls(config, *found)

  @functools.cached_property
  def model(self) -> Trunk:
    return assemble.model(self.config, self.vocab, source_vocab=self.source_vocab)

  @functools.cached_property
  def state(self) -> states.State:
    """Abstract, boxed; the kernel, of which there are no parameters, is that which is simplest to trace."""
    return estimate.abstract_state(self.config, flops.with_kernel(self.model, Dense()))


def validate_mesh(request: PlanRequest, mesh: Mesh) -> None:
  """Refuses what the mesh does not divide.

  Raises:
    ValueError: naming the field, or the parameter.
  """
  validate.run(request.config, mesh.size)
  sharding.validate_divisibility(
    request.state.params,
    mesh,
    sharding.parse_rules(request.config.rules),
    tuple(validate.needs(request.config)),
  )


def lower_training_step(request: PlanRequest, mesh: Mesh) -> Step:
  """The step of `tfm train`."""
  config, t, rules = request.config, request.config.training, sharding.parse_rules(request.config.rules)
  boxed, objective = request.state, assemble.objective(config)
  optimizer, rate = assemble.optimizer(config)
  where, rows = states.shardings(boxed, mesh, rules), sharding.batch_sharding(mesh, rules)
  batch = estimate.abstract_batch(objective.padding(config.data.length), t.batch_size)
  batch = target(batch, jax.tree.map(lambda _: rows, batch))
  state = target(nn.unbox(boxed), where)  # outside of the mesh, where a box would constrain what it gives
  with sharding.context(mesh, rules):
    lowered = jitted(
      train_step(request.model, objective, optimizer, rate, t.gradient_accumulation), where
    ).lower(state, batch)
  arguments = dict(
    parameters=memory.on_device(boxed.params, mesh, rules),
    optimizer=memory.on_device(boxed.opt_state, mesh, rules),
    batch=sum(bytes_per_device(x) for x in jax.tree.leaves(batch)),
  )
  cost, tokens = flops.per_token(request.model, config.data.length), t.batch_size * config.data.length
  pairs = sum(count for kind, count in cost.kinds.items() if kind.endswith(flops.PAIRS))
  return Step(
    'training',
    lowered,
    arguments,
    tokens,
    tokens * cost.training,
    tokens * pairs * (4 if config.model.remat == 'full' else 3),
  )


def supports_decoding(request: PlanRequest) -> bool:
  """Whether the model is one whose decoding step is planned: a decoder without an encoder."""
  return type(request.model) is Decoder


def lower_decoding_step(request: PlanRequest, mesh: Mesh, rows: int) -> Step:
  """The step of `tfm generate` that writes a token of each of `rows` rows, when their caches are full: `data.length` tokens."""
  config, rules = request.config, sharding.parse_rules(request.config.rules)
  length = loop.buckets(config.data.length, 16)
  model = unscanned(request.model)
  keys = row_keys(0, [[0]], [0])
  dense = flops.with_kernel(model, Dense())
  boxed = jax.eval_shape(lambda key: states.parameters(dense, key, 1, config.data.length), jax.random.key(0))
  params = target(nn.unbox(boxed), sharding.named_shardings(boxed, mesh, rules))
  on_rows, whole = sharding.batch_sharding(mesh, rules), sharding.replicated(mesh)
  with sharding.context(mesh, rules):
    rows = loop.padded(rows)
    made = loop.empty.lower(model, rows, length)
    caches = target(jax.eval_shape(lambda: model.init_caches(rows, length)), made.compile().output_shardings)

    def of_rows(dtype):
      return jax.ShapeDtypeStruct((rows,), dtype, sharding=on_rows)

    state = loop.State(caches, of_rows(jnp.int32), of_rows(jnp.int32), of_rows(bool))
    lowered = loop.decode.lower(
      model,
      params,
      state,
      jax.ShapeDtypeStruct((rows,), keys.dtype, sharding=on_rows),
      Sampling(),
      -1,
      jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
      1,
    )
  arguments = dict(
    parameters=memory.on_device(boxed, mesh, rules), cache=sum(map(bytes_per_device, jax.tree.leaves(caches)))
  )

  # All that is in the cache is counted as seen.
  def read(params, caches):
    tokens = jnp.zeros((rows, 1), jnp.int32)
    return dense.apply({'params': params}, tokens, loop.Context(tokens, tokens + 1, tokens), caches)

  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, caches))
  products = list(flops.products(jax.make_jaxpr(read)(*shapes).jaxpr))
  return Step('decoding', lowered, arguments, rows, sum(one.flops for one in products), 0.0)


def bytes_per_device(x: jax.ShapeDtypeStruct) -> int:
  """One device's part of an array."""
  return memory.whole(jax.ShapeDtypeStruct(x.sharding.shard_shape(x.shape), x.dtype))
