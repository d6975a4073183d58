"""Loads a published checkpoint: its config.json becomes a config, its tensors become parameters."""

import dataclasses
import math
import pathlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.config import assemble, schema
from tfm.decoding import beam, loop
from tfm.decoding.sampling import Sampling
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import importing_extra, parsing, read_json_object, require, suggest
from tfm.hf import checkpoint_tensors, text_length
from tfm.hf.families import longformer
from tfm.hf.families.protocol import Family
from tfm.hf.forward import FORWARD, INPUT_CONDITIONS, INPUT_NAMES, Inputs
from tfm.hf.from_config import build_model, config_from_hf, find_family
from tfm.mixers.protocol import Context
from tfm.models.trunk import Trunk
from tfm.parallel import host_arrays, sharding
from tfm.parallel import mesh as meshes
from tfm.shapes import Array, PyTree
from tfm.training import checkpoint
from tfm.training import state as states


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A published model with its parameters.

  Attributes:
    config: resolved.
    model, params: of the config.
    family: that read the checkpoint.
    output: one of `tfm.hf.families.protocol.OUTPUTS`.
    ids: of special tokens: 'start', 'eos' and 'pad', if config.json has them.
    vocab: size of the vocabulary.
    source_vocab: size of a separate source vocabulary; 0: none.
    mesh, rules: placement of the parameters.
  """

  config: ConfigDict
  model: Trunk
  params: PyTree
  family: Family
  output: str
  ids: dict[str, Any]
  vocab: int
  mesh: Mesh
  rules: sharding.Rules
  source_vocab: int = 0

  def logits(
    self,
    input_ids: Array | None = None,
    attention_mask: Array | None = None,
    token_type_ids: Array | None = None,
    decoder_input_ids: Array | None = None,
    pixel_values: Array | None = None,
    global_attention_mask: Array | None = None,
  ) -> np.ndarray:
    """The output of the published model, float32: logits [B, T, V] or [B, classes]; without an output, the
    last hidden states [B, T, D].

    Args:
      input_ids: int [B, T].
      attention_mask: 1 for tokens, 0 for padding, which may be on either side; positions count from the
        first token.
      token_type_ids: for encoders with token types.
      decoder_input_ids: for encoder-decoders, [B, T]; `input_ids` are then the source.
      pixel_values: images, [B, channels, H, W], as in the published implementation.
      global_attention_mask: for Longformer, [B, T]: 1 for tokens with global attention; replaces the
        default of the published class.
    """
    arguments = dict(
      input_ids=input_ids,
      attention_mask=attention_mask,
      token_type_ids=token_type_ids,
      decoder_input_ids=decoder_input_ids,
      pixel_values=pixel_values,
      global_attention_mask=global_attention_mask,
    )
    m = self.config.model
    kind = 'vision' if m.patch else m.architecture
    for name, value in arguments.items():
      is_read = name in INPUT_NAMES[kind] and INPUT_CONDITIONS.get(name, bool)(m)
      require(
        value is None or is_read,
        f'{name} is not an input of model_type={self.family.model_type!r}; remove it',
      )
    main = INPUT_NAMES[kind][0]
    require(arguments[main] is not None, f'model_type={self.family.model_type!r} requires {main}; pass it')
    require(
      kind != 'encoder_decoder' or decoder_input_ids is not None,
      "a model of architecture 'encoder_decoder' requires decoder_input_ids; pass them",
    )
    if kind == 'vision':
      images = jnp.moveaxis(jnp.asarray(pixel_values), 1, -1)
      require(
        images.shape[1:] == self.model.shape,
        f'pixel_values have shape {np.shape(pixel_values)[1:]} (channels, height, width); the model requires '
        f'{self.model.shape[2:] + self.model.shape[:2]}',
      )
      model, inputs, context = self.model, images, self.model.example(len(images), 0)[1]
    else:
      inputs, context = (
        jnp.asarray(input_ids),
        build_context(input_ids, attention_mask, self.family.position_counting, self.ids.get('pad')),
      )
      model = self.model_for_length(context.positions.shape[1])
      if global_attention_mask is not None:
        model = build_model(longformer.use_context_globals(self.config), self.vocab, self.source_vocab)
        context = context.replace(
          prefix=jnp.where(jnp.asarray(global_attention_mask) > 0, context.positions + 1, -1)
        )
      validate_padding(self.config, context)
      validate_positions(model, context)
      reads_first = self.output == 'classes' and m.pooling == 'first'
      require(
        not reads_first or (context.segments[:, 0] > 0).all(),
        'attention_mask hides the first id of a row, which the classifier reads; pad on the right',
      )
    with sharding.context(self.mesh, self.rules):
      arrays = Inputs(inputs, context, token_type_ids, decoder_input_ids)
      return host_arrays.fetch(FORWARD[kind](model, self.params, self.output, arrays))

  def generate(  # more than six parameters: those of the published method
    self,
    input_ids: Array,
    attention_mask: Array | None = None,
    *,
    max_new_tokens: int,
    num_beams: int = 1,
    eos_id: int | None = None,
    do_sample: bool = False,
    seed: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool = False,
    **sampling: Any,
  ) -> np.ndarray:
    """New tokens after each row, int32 [B, N], without the prompt: greedy, sampled, or by beam search.

    A row that ended includes its end token and is padded.

    Args:
      eos_id: the token that ends a row; None: none.
      seed, **sampling: fields of `tfm.decoding.sampling.Sampling`; require do_sample.
      length_penalty, early_stopping: of beam search, as in `transformers`.
    """
    require(
      num_beams == 1 or not do_sample,
      f'num_beams={num_beams} (beam search) and do_sample=True exclude each other; use one',
    )
    require(do_sample or not sampling, f'{next(iter(sampling), "")} requires do_sample=True')
    if num_beams > 1:
      hypotheses = self.search(
        input_ids,
        attention_mask,
        max_new_tokens=max_new_tokens,
        settings=beam.BeamSearch(
          num_beams, beam.Power(length_penalty), 'first' if early_stopping else 'likely'
        ),
        eos_id=eos_id,
      )
      rows = [best[0].tokens for best in hypotheses]
    else:
      prompts, sources = self.build_prompts(input_ids, attention_mask)
      settings = Sampling(**{'temperature': 1.0} | sampling) if do_sample else Sampling(temperature=0.0)
      with sharding.context(self.mesh, self.rules):
        chunks = [
          *loop.generate(
            *unroll_layers(self.model_for_generation(max(map(len, prompts))), self.params),
            prompts,
            max_tokens=max_new_tokens,
            eos=eos_id,
            sources=sources,
            sampling=settings,
            seed=seed,
          )
        ]
      rows = [np.concatenate(parts) for parts in zip(*chunks)]
    pad = next(x for x in (self.ids.get('pad'), eos_id, 0) if x is not None)
    if eos_id is not None:
      rows = [row if len(row) == max_new_tokens else np.append(row, eos_id) for row in rows]
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=pad) for row in rows]).astype(
      np.int32
    )

  def search(
    self,
    input_ids: Array,
    attention_mask: Array | None = None,
    *,
    max_new_tokens: int,
    settings: beam.BeamSearch,
    eos_id: int | None = None,
  ) -> list[list[beam.Hypothesis]]:
    """The `settings.beams` best continuations of each row, best first, with their scores.

    The length counts new tokens, as in `transformers`.
    """
    prompts, sources = self.build_prompts(input_ids, attention_mask)
    with sharding.context(self.mesh, self.rules):
      return beam.search(
        *unroll_layers(self.model_for_generation(max(map(len, prompts))), self.params),
        prompts,
        max_tokens=max_new_tokens,
        settings=settings,
        sources=sources,
        eos=-1 if eos_id is None else eos_id,
      )

  def build_prompts(
    self, input_ids: Array, attention_mask: Array | None
  ) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """(prompts, sources) from rows with padding; for a decoder the rows are prompts, and sources are None."""
    ids = np.asarray(input_ids)
    mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
    rows = [row[attended > 0].astype(np.int32) for row, attended in zip(ids, mask)]
    if self.config.model.architecture != 'encoder_decoder':
      return rows, None
    require(
      self.ids.get('start') is not None,
      'config.json has no decoder_start_token_id, which generation requires; add it',
    )
    return [np.array([self.ids['start']], np.int32) for _ in rows], rows

  def model_for_length(self, length: int) -> Trunk:
    """The model for texts of a length; it differs from `model` only if its rotary scaling depends on the
    length.
    """
    if not text_length.parts_by_length(self.config):
      return self.model
    config = self.config.copy_and_resolve_references()
    config.data.length = length
    return build_model(config, self.vocab, self.source_vocab)

  def model_for_generation(self, length: int) -> Trunk:
    """The model that continues prompts, the longest of `length` tokens: a rotary scaling that depends on the
    length of the text changes with every token, as in the published implementation.
    """
    if not text_length.parts_by_length(self.config):
      return self.model
    return build_model(text_length.follow_length(self.config, length), self.vocab, self.source_vocab)


def build_context(
  ids: Array, mask: Array | None, position_counting: str = 'attended', pad: int | None = None
) -> Context:
  """The context of rows of one document each, with padding where the mask is 0.

  Args:
    position_counting: one of `tfm.hf.families.protocol.POSITION_COUNTING`.
    pad: the padding id, for 'not_padding'.
  """
  ids = np.asarray(ids)
  mask = np.ones(ids.shape, np.int32) if mask is None else np.asarray(mask, np.int32)
  if position_counting == 'not_padding':
    positions = np.where(ids == pad, -1, np.cumsum(ids != pad, 1) - 1)  # -1: the table's row for padding
  else:
    counted = mask if position_counting == 'attended' else np.ones_like(mask)
    positions = np.maximum(np.cumsum(counted, 1) - 1, 0)
  return Context(jnp.asarray(positions, jnp.int32), jnp.asarray(mask), jnp.zeros_like(jnp.asarray(mask)))


def validate_padding(config: ConfigDict, context: Context) -> None:
  """Raises ValueError for padding between tokens if an encoder has masks over positions, which would not
  count it.
  """
  index, is_token = np.arange(context.positions.shape[1]), np.asarray(context.segments) > 0
  shift, bound = np.asarray(context.positions) - index, len(index)
  has_gap = (np.where(is_token, shift, -bound).max(1) > np.where(is_token, shift, bound).min(1)).any()
  has_gap &= config.model.architecture == 'encoder'
  require(
    not has_gap or all(part.mask == 'full' for part in schema.parts(config).values()),
    'attention_mask hides ids between the tokens of a row, which windowed masks do not support; '
    'remove these ids',
  )


def validate_positions(model: Trunk, context: Context) -> None:
  """Raises ValueError for tokens beyond the model's maximum position."""
  limits = [factory().max_positions for factory in model.positions]
  limit = min((limit for limit in limits if limit is not None), default=math.inf)
  last = int(context.positions.max(initial=0))
  require(last < limit, f'input_ids reach position {last}; the model has {limit} positions, use shorter rows')


def from_pretrained(
  path: str, dtype: str = 'float32', mesh: dict[str, int] | None = None, slices: dict[str, Any] = {}
) -> Pretrained:
  """Loads a published checkpoint with config.json and model.safetensors (one file, or several with an index).

  Args:
    path: a local folder, or a name on the hub, which `huggingface_hub` downloads.
    dtype: of parameters and computation: float32, bfloat16, float16.
    mesh: axis → number of devices, as in config.mesh; None: a single device. Each process reads every tensor,
      one at a time, and its devices hold their parts.
    slices: as in config.slices.

  Raises:
    ValueError: for a path without a checkpoint, and an unsupported family, class, field or tensor, by name.
  """
  folder = locate_checkpoint(path)
  kind = 'the config of a published model'
  fields = read_json_object(folder / 'config.json', kind)
  family = find_family(fields, folder)
  with parsing(folder / 'config.json', kind):
    config, output, ids, vocab, source_vocab = config_from_hf(family, fields)
  stored = checkpoint_tensors.CheckpointTensors(folder)
  resolve_tying(config, output, family, stored)
  require(
    dtype in assemble.DTYPES, f'dtype={dtype!r} is not supported; {suggest(str(dtype), assemble.DTYPES)}'
  )
  config.model.dtype = dtype
  with parsing(folder / 'config.json', kind):
    model = build_model(config, vocab, source_vocab)
  device_mesh = meshes.make(mesh, **slices) if mesh else meshes.make(dict(data=1), jax.devices()[:1])
  rules = sharding.parse_rules(config.rules)
  boxed = jax.eval_shape(
    lambda key: states.init_params(model, key, 1, min(config.data.length, 16)), jax.random.key(0)
  )
  sharding.validate_divisibility(boxed, device_mesh, rules)
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, assemble.DTYPES[dtype]), nn.unbox(boxed))
  target = checkpoint.restore_target(abstract, sharding.named_shardings(boxed, device_mesh, rules))
  params = checkpoint_tensors.load_params(
    stored, family.weights(config), target, family.prefix, family.ignored_tensors, family.unused_tensors
  )
  return Pretrained(config, model, params, family, output, ids, vocab, device_mesh, rules, source_vocab)


def resolve_tying(
  config: ConfigDict, output: str, family: Family, stored: checkpoint_tensors.CheckpointTensors
) -> None:
  """Sets whether the output is tied to the embedding, which only the tensors show; merges duplicates of a
  tied table and removes constants.

  Raises:
    ValueError: for copies of a tied table that differ, and constants with unexpected values.
  """
  tied_names = family.tied_names(config)
  for prefix in ('', family.prefix):
    stored.merge_duplicates([name.removeprefix(prefix) for name in tied_names])
    for name, values in family.constants(config):
      stored.remove_constant(name.removeprefix(prefix), values)
  if not family.lm_head or output != 'vocabulary':
    return
  if family.lm_head not in stored.names:
    config.model.tie_embeddings = True
  elif config.model.tie_embeddings and stored.are_equal(tied_names[0], family.lm_head):
    stored.merge_duplicates((tied_names[0], family.lm_head))
  else:
    config.model.tie_embeddings = False


def locate_checkpoint(path: str) -> pathlib.Path:
  """The local folder of a checkpoint; a path that is no local folder is downloaded from the hub by name.

  Raises:
    ValueError: if neither works.
  """
  folder = pathlib.Path(path).expanduser()
  if not folder.exists() and len(pathlib.PurePath(path).parts) == 2 and not path.startswith(('.', '/', '~')):
    with importing_extra('hub'):
      import huggingface_hub
    try:
      folder = pathlib.Path(
        huggingface_hub.snapshot_download(
          path, allow_patterns=['*.json', '*.safetensors', '*.txt', '*.model', '*.spm']
        )
      )
    except Exception as error:  # the library raises errors of many packages
      [reason, *_] = str(error).splitlines() or [type(error).__name__]
      raise ValueError(
        f'{path} is no local folder, and its download from the hub failed: {reason.strip()}'
      ) from error
  require((folder / 'config.json').is_file(), f'{path} has no config.json; use a published checkpoint')
  return folder
