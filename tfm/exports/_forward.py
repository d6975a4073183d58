"""What a model computes, as a function of arrays alone, for formats that hold a program."""

import dataclasses
import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tfm.decoding.unroll_layers import unroll_encoder, unroll_layers
from tfm.errors import require
from tfm.hf.tensor_files import DTYPES, save_tensors
from tfm.kernels.dense import Dense
from tfm.layers.lora import merge_adapters
from tfm.mixers.protocol import Context
from tfm.models import flops
from tfm.models.encoder_decoder import EncoderDecoder
from tfm.runs.init_from import leaves_by_path
from tfm.runs.load import Run
from tfm.shapes import Array, Float, Int, PyTree


@dataclasses.dataclass(frozen=True)
class Input:
  """An argument of the function; a dimension that is a name may have any size."""

  name: str
  shape: tuple[int | str, ...]
  dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
  """Logits of rows of one document each, from position 0.

  Attributes:
    params: in host memory; adapters are merged.
    inputs: what the function takes besides them. Masks are 1 at tokens and 0 at padding.
    compute: (params, *inputs) → logits by name.
  """

  params: PyTree
  inputs: tuple[Input, ...]
  compute: Callable[..., dict[str, Float[Array, 'B ...']]]

  @property
  def output_names(self) -> list[str]:
    """The names of the logits."""
    inputs = [
      jax.ShapeDtypeStruct([1 if isinstance(size, str) else size for size in one.shape], one.dtype)
      for one in self.inputs
    ]
    return sorted(jax.eval_shape(self.compute, self.params, *inputs))


def build_forward(run: Run, batch: int = 0, length: int = 0) -> Forward:
  """The function of a run's model, with the dense kernel.

  Args:
    batch, length: the sizes of its inputs; 0: any.
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
  model, params = flops.with_kernel(run.model, Dense()), jax.device_get(merge_adapters(run.params))
  model, params = unroll_layers(model, params)
  if isinstance(model, EncoderDecoder):
    model, params = unroll_encoder(model, params)
  params = jax.device_get(params)
  rows, tokens, sources = batch or 'batch', length or 'length', length or 'source_length'

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


def save_description(folder: pathlib.Path, run: Run, forward: Forward, **more: object) -> None:
  """Writes export.json: the inputs, the step of the run, its tokenizers, and what else is given."""
  tokenizers = {
    name: one.state() if one else None
    for name, one in dict(tokenizer=run.tokenizer, source_tokenizer=run.source_tokenizer).items()
  }
  fields = dict(
    inputs=[dataclasses.asdict(one) for one in forward.inputs], step=run.step, **tokenizers, **more
  )
  (folder / 'export.json').write_text(json.dumps(fields, indent=2) + '\n', encoding='utf-8')
