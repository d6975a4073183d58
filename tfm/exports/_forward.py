"""What a model computes, as a function of arrays alone, for formats that hold a program."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from tfm.decoding.loop import list_position_limits
from tfm.decoding.unroll_layers import unroll_encoder, unroll_layers
from tfm.errors import require
from tfm.hf.tensor_files import DTYPES, save_tensors
from tfm.kernels.dense import Dense
from tfm.layers.lora import merge_adapters
from tfm.mixers.protocol import Context
from tfm.models import flops
from tfm.models.decoder import Decoder
from tfm.models.encoder_decoder import EncoderDecoder
from tfm.runs.init_from import leaves_by_path
from tfm.runs.load import Run
from tfm.shapes import Array, Int, PyTree
from tfm.training.atomic_files import write_atomically


LENGTH = 'length'
NEW = 'new_'
# What JAX raises for a model that it cannot trace with symbolic sizes.
UNTRACEABLE = TypeError, ValueError, NotImplementedError, jax.errors.InconclusiveDimensionOperation


@dataclasses.dataclass(frozen=True)
class Input:
  """An argument of the function; a dimension that is a name may have any size."""

  name: str
  shape: tuple[int | str, ...]
  dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
  """Logits of rows of one document each, from position 0; with a cache, of the tokens that follow those read.

  Attributes:
    params: in host memory; adapters are merged.
    inputs: what the function takes besides them. Masks are 1 at tokens and 0 at padding.
    compute: (params, *inputs) → logits by name, and what the cache becomes.
    cache: the arrays of an empty cache of one row, by the names of their inputs; what `x` becomes is the
      output `new_x`. {}: no cache.
    room: how many tokens a row of the cache has room for.
  """

  params: PyTree
  inputs: tuple[Input, ...]
  compute: Callable[..., dict[str, Array]]
  cache: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  room: int = 0

  @property
  def output_names(self) -> list[str]:
    """The names of the logits, then those of the cache."""
    inputs = [
      jax.ShapeDtypeStruct([1 if isinstance(size, str) else size for size in one.shape], one.dtype)
      for one in self.inputs
    ]
    names = jax.eval_shape(self.compute, self.params, *inputs)
    return sorted(names, key=lambda name: (name.startswith(NEW), name))

  def symbolic_inputs(self) -> list[jax.ShapeDtypeStruct]:
    """The inputs, to trace the function with; a dimension that is a name is symbolic."""
    bounds = [f'{LENGTH} <= {self.room}'] if self.room else []
    scope = export.SymbolicScope(bounds)
    return [
      jax.ShapeDtypeStruct(export.symbolic_shape(', '.join(map(str, one.shape)), scope=scope), one.dtype)
      for one in self.inputs
    ]


def build_forward(run: Run, batch: int = 0, length: int = 0, cache: int = 0) -> Forward:
  """The function of a run's model, with the dense kernel.

  Args:
    batch, length: the sizes of its inputs; 0: any.
    cache: how many tokens of a row a cache has room for; 0: there is none, and inputs are whole rows.

  Raises:
    ValueError: for an architecture that this form cannot hold, and a cache of what is no decoder.
  """
  architecture = run.config.model.architecture
  require(
    architecture != 'image_text',
    f'config.model.architecture={architecture!r} has two inputs and no format for them; use tfm export '
    '--format=safetensors',
  )
  require(
    architecture != 'diffusion',
    'a sampler calls a diffusion model many times, and this format has one call; use safetensors, which has '
    'the parameters',
  )
  require(
    not cache or architecture == 'decoder',
    f'cache={cache} is for decoders, and config.model.architecture={architecture!r}; leave it out',
  )
  model, params = flops.with_kernel(run.model, Dense()), jax.device_get(merge_adapters(run.params))
  model, params = unroll_layers(model, params)
  if isinstance(model, EncoderDecoder):
    model, params = unroll_encoder(model, params)
  params = jax.device_get(params)
  rows, tokens, sources = batch or 'batch', length or LENGTH, length or 'source_length'

  def text(name, size):
    return Input(name, (rows, size), 'int32')

  def apply(params, *arguments):
    return model.apply({'params': jax.tree.map(jnp.asarray, params)}, *arguments)[0]

  def decode(params, tokens):
    return dict(logits=apply(params, tokens, rows_context(jnp.ones_like(tokens))))

  def encode(params, tokens, mask):
    return apply(params, tokens, rows_context(mask))

  def translate(params, tokens, source, mask):
    context = rows_context(jnp.ones_like(tokens))
    return dict(logits=apply(params, tokens, context, None, source, rows_context(mask)))

  def see(params, images):
    return apply(params, *model.arguments(images))

  if cache:
    return build_step(model, params, rows, tokens, cache)
  shape = run.experiment.source.image_shape
  if shape:
    return Forward(params, (Input('images', (rows, *shape), 'float32'),), see)
  functions = {
    'decoder': (decode, text('tokens', tokens)),
    'encoder': (encode, text('tokens', tokens), text('mask', tokens)),
    'encoder_decoder': (translate, text('tokens', tokens), text('source', sources), text('mask', sources)),
  }
  compute, *inputs = functions[run.config.model.architecture]
  return Forward(params, tuple(inputs), compute)


def build_step(model: Decoder, params: PyTree, rows: int | str, tokens: int | str, room: int) -> Forward:
  """A step of decoding: (params, tokens, positions, mask, *cache) → logits and the cache with these tokens.

  Rows of unequal length are padded on the left.
  """
  require(
    'prefix' not in model.required_fields,
    'the mask of this model sees a prefix whole, so that a text cannot be read in steps; leave out cache',
  )
  for name, limit in list_position_limits(model.positions):
    require(
      room <= limit,
      f'cache={room} needs as many positions, and {name} has {limit}; use at most cache={limit}',
    )
  one, two = (jax.eval_shape(lambda n=n: model.init_caches(n, room)) for n in (1, 2))
  structure = jax.tree.structure(one)
  empty = {
    'cache/' + jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(x)
    for path, x in jax.tree_util.tree_leaves_with_path(model.init_caches(1, room))
  }

  def step(params, tokens, positions, mask, *cache):
    caches = jax.tree.unflatten(structure, cache)
    context = Context(positions, mask, jnp.zeros_like(mask))
    params = jax.tree.map(jnp.asarray, params)
    logits, caches = model.apply({'params': params}, tokens, context, caches)
    new = zip(empty, jax.tree.leaves(caches), strict=True)
    return dict(logits=logits) | {NEW + name: x for name, x in new}

  inputs = [Input(name, (rows, tokens), 'int32') for name in ('tokens', 'positions', 'mask')]
  for name, a, b in zip(empty, jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    shape = tuple(rows if m != n else m for m, n in zip(a.shape, b.shape))
    inputs.append(Input(name, shape, a.dtype.name))
  return Forward(params, tuple(inputs), step, empty, room)


def rows_context(mask: Int[Array, 'B T']) -> Context:
  """Rows of one document each, from position 0, followed by padding where the mask is 0."""
  # A sum instead of `arange`, whose length some formats must know.
  positions = jnp.cumsum(jnp.ones_like(mask), axis=1) - 1
  return Context(positions, mask, jnp.zeros_like(mask), layout='contiguous')


def save_params(folder: pathlib.Path, params: PyTree) -> int:
  """Writes model.safetensors with the parameters by their paths; returns their number."""
  leaves = leaves_by_path(params)
  for name, x in leaves.items():
    require(
      x.dtype.name in DTYPES,
      f'the parameter {name} is of type {x.dtype.name}, which safetensors does not have; use int8 or none in '
      'config.model.quantization',
    )
  tensors = ((name, np.asarray(jax.device_get(x))) for name, x in leaves.items())
  save_tensors(folder, tensors, [*leaves])
  return len(leaves)


def save_description(folder: pathlib.Path, run: Run, forward: Forward, **more: object) -> str:
  """Writes export.json: the inputs, the step of the run, its tokenizers, and what else is given; and
  cache.safetensors, the empty cache of one row, if there is a cache. Returns the files' names.
  """
  tokenizers = {
    name: one.state() if one else None
    for name, one in dict(tokenizer=run.tokenizer, source_tokenizer=run.source_tokenizer).items()
  }
  fields = dict(
    inputs=[dataclasses.asdict(one) for one in forward.inputs], step=run.step, **tokenizers, **more
  )
  write_atomically(folder / 'export.json', json.dumps(fields, indent=2) + '\n')
  if not forward.cache:
    return 'export.json'
  save_tensors(folder, forward.cache.items(), [*forward.cache], stem='cache')
  return 'export.json and cache.safetensors'
