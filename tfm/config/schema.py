"""Every field of a config, with its default.

A config file returns only the fields that differ from the defaults: `get_config(arg) -> ConfigDict`. The
loader adds the rest, so `--config.any.field=value` works for every field.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from tfm.config.field_errors import build_field
from tfm.config.names import FromSlot, FromSources, FromTable, OneOf
from tfm.errors import require
from tfm.spec import (
  NonNegativeFloat,
  NonNegativeInt,
  PositiveInt,
  Rate,
  Size,
  SizeOrZero,
  shorten,
  unsuitable_reason,
)


MAX_BEAMS = 1024  # hypotheses of a beam search
# The fields of `model` that a block of a pattern may set for itself.
BLOCK_FIELDS = (
  'heads',
  'kv_heads',
  'head_width',
  'mixer',
  'position',
  'mask',
  'score',
  'kernel',
  'feed_forward',
  'feed_forward_width',
  'norm',
  'norm_placement',
  'residual',
  'canon',
  'own_keys',
  'bias',
)

# The fields that the cross-attention of an encoder-decoder has too.
CROSS_FIELDS = ('heads', 'kv_heads', 'head_width', 'mixer', 'position', 'mask', 'score', 'kernel', 'bias')

# Sections whose fields are named by a config, and each of their fields.
TABLES = {'data.sources': FromSources('')}

# Sections in which None means "as the model's".
INHERITING = ('model.blocks.', 'model.encoder.', 'model.cross.')


class Ranged(NamedTuple):
  """The default of a field, and the type with the range of its values."""

  default: Any
  type: Any


FIELDS = Ranged, FromSlot, FromSources, FromTable, OneOf  # fields whose values are checked


def default_config() -> ConfigDict:
  """Every field with its default. None means "derived from other fields", by `resolve_config`."""

  def defaults(fields):
    if isinstance(fields, FIELDS):
      return fields.default
    return {name: defaults(field) for name, field in fields.items()} if isinstance(fields, dict) else fields

  return ConfigDict(defaults(_fields()), sort_keys=False)


@functools.cache
def checked_fields() -> dict[str, Any]:
  """Path → one of `FIELDS`, of every field that has one."""

  def walk(fields, prefix=''):
    for name, field in fields.items():
      if isinstance(field, FIELDS):
        yield f'{prefix}{name}', field
      elif isinstance(field, dict):
        yield from walk(field, f'{prefix}{name}.')

  return dict(walk(_fields()))


def field_ranges() -> dict[str, Any]:
  """Path → type with its range, of every field that has one."""
  return {path: field.type for path, field in checked_fields().items()}


def validate_fields(config: ConfigDict) -> None:
  """Raises ValueError for a field whose value is out of its range, or names what is not there; None is valid
  until it is resolved. Imports neither JAX nor a variant.
  """
  fields = checked_fields()
  for path, value in leaves(config):
    # The fields of a section that inherits have the ranges of the model's fields.
    section = next((prefix for prefix in INHERITING if path.startswith(prefix)), None)
    name = path if section is None else f'model.{path.rpartition(".")[2]}'
    field = TABLES.get(path.rpartition('.')[0], fields.get(name))
    if value is None or field is None:
      continue
    reason = unsuitable_reason(value, field.type)
    require(not reason, f'config.{path}={shorten(value)} {reason}')
    if isinstance(field, Ranged):
      continue
    allows_empty = not isinstance(field.default, str) or not field.default  # '' may leave a field open
    for text in value if isinstance(value, (tuple, list)) else [value]:
      if text or not allows_empty:
        build_field(path, field.validate, text)


def _fields() -> dict[str, Any]:
  """The defaults of all sections and fields; what is checked is one of `FIELDS`.

  The comment beside a field, or right above it, is its description in `--help` and in the docs.
  """
  return dict(
    seed=Ranged(0, Annotated[int, Interval(ge=0, lt=2**32)]),  # of parameters, batches and dropout
    init_from='',  # the --workdir of a trained or imported run whose parameters training starts from
    # of its layers those that this model has, such as (0, 2, 4) of six; (): all
    init_layers=Ranged((), tuple[NonNegativeInt, ...]),
    data=dict(
      # tfm/data/sources: stdlib, text('*.txt'), arrow('folder'), tfds('name'), digits, …
      source=FromSources('stdlib'),
      sources=dict(),  # name → source, '' for none; for the mixtures of config.data.source, mix(name=0.7, …)
      # tfm/data/tokenizers: bytes, char, words, sentencepiece(8000)
      tokenizer=FromSlot('bytes', 'data.tokenizers'),
      # for the source of pairs; None: one tokenizer for both sides
      source_tokenizer=FromSlot(placeholder(str), 'data.tokenizers'),
      length=Ranged(256, Size),  # tokens of a row; for images: patches and class tokens
      # tfm/data/packing: concat, first_fit, buckets (pairs), each (classes), …
      packing=FromSlot('concat', 'data.packing'),
      # threads that prepare training batches
      reader_threads=Ranged(2, Annotated[int, Interval(ge=0, le=1024)]),
    ),
    model=dict(
      # decoder, encoder_decoder, encoder, image_text, diffusion
      architecture=OneOf('decoder', 'config.assemble.models:ARCHITECTURES'),
      # in an encoder-decoder this and the following describe the decoder, in an image-text model the text
      layers=Ranged(6, Annotated[int, Interval(ge=1, le=10_000)]),
      width=Ranged(384, Size),  # D, channels of a token between blocks
      heads=Ranged(6, Size),  # H, query heads
      # K, key/value heads; None: heads (multi-head); 1: multi-query; between: grouped
      kv_heads=Ranged(placeholder(int), Size),
      head_width=Ranged(placeholder(int), Size),  # C, channels of a head; None: width / heads
      mixer=FromSlot('softmax', 'mixers'),  # tfm/mixers: softmax, linear, gated_delta, mamba2, latent, …
      # tfm/positions: rope(theta=…), alibi, t5, learned, sinusoidal, none, …
      position=FromSlot('rope', 'positions'),
      # tfm/masks, combined with & | ~; None: causal, or full in encoders
      mask=FromSlot(placeholder(str), 'masks'),
      score=FromSlot('dot', 'scores'),  # tfm/scores: dot, additive, bilinear, cosine
      # tfm/kernels: auto, dense, chunked, ring, flash, cudnn, splash, tokamax
      kernel=FromSlot('auto', 'kernels'),
      # tfm/feed_forwards: relu, gelu, swiglu, mixture_of_experts(…), none, …
      feed_forward=FromSlot('gelu', 'feed_forwards'),
      # F, of each expert; None: 4 D, or 8/3 D rounded up to a multiple of 64 if gated, or 0 for 'none'
      feed_forward_width=Ranged(placeholder(int), SizeOrZero),
      norm=FromSlot('layernorm', 'norms'),  # tfm/norms: layernorm(epsilon, bias=…, scale=…), rmsnorm(epsilon)
      norm_placement=OneOf('pre', 'residuals.protocol:PLACEMENTS'),  # pre, post, sandwich, res_post
      # tfm/residuals: sequential, parallel, normed, deepnorm, hyper_connections, …
      residual=FromSlot('sequential', 'residuals'),
      # short causal convolutions (Canon layers), letters of ABCD: before the mixer, on its queries, keys and
      # values, before the feed-forward layer, on its hidden layer
      canon='',
      # False, in a block of a pattern: it attends to keys and values of the last earlier block with its own
      own_keys=True,
      value_residual='',  # mixes values with those of the first layer: constant(share), gated; '': none
      bias=False,  # biases of projections, and of layer norms whose spec does not set it
      # probability with which an activation is dropped
      dropout={name: Ranged(0.0, Rate) for name in ('embedding', 'attention', 'residual')},
      tie_embeddings=True,  # the output layer uses the embedding table
      # width of the table, followed by a projection to D; None: D, no projection
      embedding_width=Ranged(placeholder(int), Size),
      scale_embeddings=False,  # multiply embeddings by √D
      embedding_norm=False,  # a norm after the embedding
      # activation of an extra layer before the output layer; '': no such layer
      output_transform=OneOf('', 'layers.activation:ACTIVATIONS'),
      output_bias=False,  # a bias per token of the vocabulary
      # output logits become cap · tanh(logits / cap); 0: no cap
      output_soft_cap=Ranged(0.0, NonNegativeFloat),
      patch=Ranged(0, SizeOrZero),  # models of images: patch size in pixels; 0: the model reads text
      token_types=Ranged(0, SizeOrZero),  # encoders: embeddings of first and second text; 0: none
      # images: learned tokens before the patches; None: as `pooling` needs
      class_tokens=Ranged(placeholder(int), SizeOrZero),
      # encoders: what classifies: first, mean; first_two: the mean of two heads
      pooling=OneOf('first', 'layers.classification_head:CLASS_TOKEN_COUNT'),
      # activation of an extra layer before the classifier; '': no such layer
      pooled_transform=OneOf('', 'layers.activation:ACTIVATIONS'),
      vocab_multiple=Ranged(128, Size),  # the embedding table's rows are rounded up to a multiple of this
      # of projections: normal, truncated_normal, xavier_uniform, lecun_normal
      initializer=FromTable('normal(0.02)', 'layers.initializer:INITIALIZERS'),
      # of the embedding table
      embedding_initializer=FromTable('normal(0.02)', 'layers.initializer:INITIALIZERS'),
      # how initial values, rates and scales follow the width: standard, mup(base_width) (Yang et al. 2022);
      # unit_weights: with residual='spherical' nGPT (Loshchilov et al. 2024)
      parametrization=FromTable('standard', 'layers.parametrization:PARAMETRIZATIONS'),
      # scale initial projections into the residual stream by 1/√(2 layers), or as the residual does
      depth_scaled=True,
      # of the computation: float32, bfloat16, float16; parameters are float32
      dtype=OneOf('float32', 'config.assemble.mixers:DTYPES'),
      scan=True,  # compile one block and loop over layers
      # what the backward pass computes again: none (but what costs no product; everything: is stored), full,
      # dots, dots_with_no_batch_dims, or all but the names in save('attention mixer/q') or, in host memory,
      # offload('block_input') (tfm/models/remat.py)
      remat=FromTable('none', 'models.remat:REMAT'),
      # projections in integers or float8: none, int8(weights_only), int4(group), fp8, bitnet
      # (tfm/layers/quantization.py)
      quantization=FromTable('none', 'layers.quantization:QUANTIZATIONS'),
      # names in `blocks`, repeated over the layers; (): all layers are equal
      pattern=Ranged((), tuple[str, ...]),
      blocks=dict(),  # name → block fields that differ from the model's
      # encoder-decoders and image-text models: the encoder's layers, pattern and differing block fields
      encoder=dict(),
      cross=dict(),  # encoder-decoders: the differing fields of cross-attention
    ),
    # tfm/objectives: causal_lm(label_smoothing, z_loss), seq2seq, …
    objective=FromSlot('causal_lm', 'objectives'),
    lora=dict(  # low-rank adapters; only they and new heads are trained
      rank=Ranged(0, SizeOrZero),  # 0: no adapters
      alpha=Ranged(16.0, Annotated[float, Interval(gt=0, le=1e6)]),  # scale of the adapters, times the rank
      targets='mixer/(q|v)/',  # regex on parameter paths: projections with an adapter
    ),
    optimizer=dict(
      # tfm/optimizers: adam, adamw(b1, b2, weight_decay), adafactor, lion, sgd(momentum)
      name=FromSlot('adamw', 'optimizers'),
      # the peak of the schedule; with noam a factor on d^-0.5
      learning_rate=Ranged(1e-3, Annotated[float, Interval(ge=0, le=1000)]),
      # noam, rsqrt(flat), cosine(floor), linear(floor), wsd(decay), constant
      schedule=FromTable('cosine', 'training.schedule:SCHEDULES'),
      warmup=Ranged(100, NonNegativeInt),  # steps over which the learning rate rises
      clip=Ranged(1.0, NonNegativeFloat),  # largest global norm of the gradient; 0: no clipping
      no_decay=r'bias|scale|table|sinks|A_log|/D$',  # regex on parameter paths: no weight decay
      frozen='',  # regex on parameter paths: parameters that are not trained; '': none
      # u: step of the biases of mixture_of_experts(balance_bias=True)
      balance_rate=Ranged(1e-3, NonNegativeFloat),
      # learning-rate factor from each layer to the one below; 1.0: the same rate
      layer_decay=Ranged(1.0, Annotated[float, Interval(ge=0.01, le=1)]),
      offload=False,  # whether its state is in host memory between updates
    ),
    training=dict(
      steps=Ranged(1000, PositiveInt),  # updates of the parameters in all
      batch_size=Ranged(32, Size),  # sequences, over all devices and microbatches
      gradient_accumulation=Ranged(1, Size),  # microbatches per step
      # type in which devices add up their gradients: float32, or bfloat16, of which they send half as much
      gradient_reduction=OneOf('float32', ('float32', 'bfloat16')),
      # Transformer-XL recurrence: tokens of a segment, which attends to earlier ones without gradient; 0:
      # none
      recurrence_length=Ranged(0, SizeOrZero),
      # skip steps whose gradient norm exceeds this times its running mean; 0.0: never
      skip_spikes=Ranged(0.0, NonNegativeFloat),
      loss_chunk=Ranged(0, SizeOrZero),  # tokens per chunk of the loss; 0: no chunks
      log_every=Ranged(10, PositiveInt),  # steps between two lines of metrics.jsonl
      evaluate_every=Ranged(100, PositiveInt),  # steps between two evaluations on the validation split
      # by which validations a run ends before its last step: never, at_least(metric, value), at_most(metric,
      # value), patience(evaluations)
      stop_when=FromTable('never', 'training.stop_rule:STOP_RULES'),
      # when to save a checkpoint: evaluation (with every one), steps(n), auto(hours between failures)
      save_every=FromTable('evaluation', 'training.save_interval:INTERVALS'),
      local_checkpoint_dir='',  # a folder on each machine's disk or memory for local checkpoints; '': none
      # as save_every, for local checkpoints
      save_local_every=FromTable('auto(hours=4.0)', 'training.save_interval:INTERVALS'),
      # batches spread over the validation split, of each source of a mixture; 0: all of it
      evaluation_batches=Ranged(0, NonNegativeInt),
      keep_checkpoints=Ranged(2, PositiveInt),  # number of last checkpoints to keep, besides the best
      # tfm/training/sinks, where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow(uri), trackio
      sinks=FromSlot((), 'training.sinks', tuple[str, ...]),
      profile=Ranged(0, NonNegativeInt),  # steps to profile, from the third; 0: none
    ),
    decoding=dict(  # tfm generate and tfm evaluate; the first four are for encoder-decoders
      beams=Ranged(1, Annotated[int, Interval(ge=1, le=MAX_BEAMS)]),  # beam size; 1: greedy
      length_penalty=FromTable('gnmt(0.6)', 'decoding.beam:PENALTIES'),  # gnmt(alpha), power(alpha)
      # proven: none can become better; likely: none is better now; first: enough
      stopping=OneOf('proven', 'decoding.beam:STOPPING'),
      max_extra_tokens=Ranged(50, SizeOrZero),  # how many tokens a target may be longer than its source
      # number of last checkpoints whose parameters are averaged on loading
      average_checkpoints=Ranged(1, PositiveInt),
      # keys and values of earlier tokens: full, in config.model.dtype; or int8, one scale for each and head
      cache=OneOf('full', 'layers.cache_type:CACHE_TYPES'),
    ),
    # devices along each axis of the mesh; -1: all that remain
    mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1, ulysses=1, expert=1, stage=1),
    slices=dict(  # groups of devices with a slow network between them
      count=-1,  # -1: as the devices report; of GPUs any number that divides them
      axis='data',  # the only mesh axis across slices: data, stage
    ),
    compiler=dict(  # how XLA compiles the training step
      # Presets of tfm/parallel/compiler_options.py: auto, none, latency_hiding, 'latency_hiding ynnpack', …
      flags='auto',
      options='',  # more of the compiler's options, such as 'xla_tpu_scoped_vmem_limit_kib=98304'
    ),
    pipeline=dict(  # for a mesh with stages
      microbatches=Ranged(0, SizeOrZero),  # parts of a batch; 0: about four per stage
      # rounds of each microbatch through smaller groups of layers (interleaved schedule)
      repeats=Ranged(1, Size),
    ),
    rules=dict(  # the mesh axes that shard this logical axis; '': none
      batch='data fsdp expert',
      length='sequence ulysses',
      vocab='tensor',
      heads='tensor',
      kv_heads='tensor',
      mlp='tensor',
      embed='fsdp',
      kv='',
      table='',
      classes='',
      pixels='',
      expert='expert',
      rank='',
      state='',
      taps='',
      gates='',
      layers='stage',
    ),
  )


def optional(fields: Iterable[str]) -> dict[str, Any]:
  """Fields with None, which means "as the model's"; the command line can set them."""
  default = default_config().model
  return {f: placeholder(default.get_type(f)) for f in fields}


def add_architecture_sections(model: ConfigDict) -> None:
  """Adds the sections that an architecture needs, unless they exist."""
  if model.architecture == 'encoder_decoder' and not model.encoder:
    model.encoder = optional(('layers', *BLOCK_FIELDS)) | dict(pattern=(), mask='full')
    model.cross = optional(CROSS_FIELDS) | dict(mask='full', position='none')
  if model.architecture == 'image_text' and not model.encoder:
    fields = 'layers', 'width', 'embedding_norm', *BLOCK_FIELDS
    model.encoder = optional(fields) | dict(pattern=(), mask='full')


def parts(config: ConfigDict) -> dict[str, ConfigDict]:
  """Path → section, for every section that describes attention or whole blocks; the model's comes first."""
  model = config.model
  sections = {'model': model, 'model.encoder': model.encoder, 'model.cross': model.cross}
  sections |= {f'model.blocks.{name}': block for name, block in model.blocks.items()}
  return {path: section for path, section in sections.items() if section}


def encoder_sections(model: ConfigDict) -> frozenset[str]:
  """The paths of the sections that describe blocks of an encoder beside the model's own stack."""
  return frozenset({'model.encoder', *(f'model.blocks.{name}' for name in model.encoder.get('pattern', ()))})


def leaves(config: Mapping, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """(dotted path, value) of every field."""
  for name, value in config.items():
    if isinstance(value, (Mapping, ConfigDict)) and len(value):
      yield from leaves(value, f'{prefix}{name}.')
    elif not isinstance(value, (Mapping, ConfigDict)):
      yield f'{prefix}{name}', value


def empty_sections(config: Mapping, prefix: str = '') -> Iterator[str]:
  """The dotted path of every section without fields."""
  for name, value in config.items():
    if isinstance(value, (Mapping, ConfigDict)):
      if not len(value):
        yield f'{prefix}{name}'
      yield from empty_sections(value, f'{prefix}{name}.')
