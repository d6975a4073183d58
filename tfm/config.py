"""The run's config: every field there is, with its default; loading, resolving, shrinking, comparing.

A config file says only what it has to say: `get_config(arg) -> ConfigDict` returns the fields that
differ from `schema()`. The loader fills in the rest, so `--config.any.field=value` reaches every one.
"""

import ast
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from tfm.layers.feed_forward import usual_hidden
from tfm.layers.pooled import LEADING
from tfm.spec import defined, parse, suggest
from tfm.training.schedule import ENDLESS

# The fields of `model` that a block of a pattern may set for itself.
BLOCK_FIELDS = (
  'heads', 'kv_heads', 'head_width', 'mixer', 'position', 'mask', 'score', 'kernel', 'feed_forward',
  'feed_forward_width', 'norm', 'norm_placement', 'residual', 'bias')
# Those that the cross-attention of an encoder-decoder's blocks has too.
CROSS_FIELDS = ('heads', 'kv_heads', 'head_width', 'mixer', 'position', 'mask', 'score', 'kernel', 'bias')
# Sections in which None is "as the model's".
INHERITING = ('model.blocks.', 'model.encoder.', 'model.cross.')

# A resumed run may change these: they say how the work is done, not what is computed.
FREE_FIELDS = (
  'mesh', 'slices', 'pipeline', 'rules', 'decoding', 'training.log_every', 'training.evaluate_every', 'training.save_every',
  'training.near', 'training.save_near', 'training.evaluation_batches', 'training.keep', 'training.profile', 'training.loss_chunk', 'model.remat', 'model.kernel', 'data.threads')


def schema() -> ConfigDict:
  """Every field with its default. None means "worked out from the others", in `resolve`."""
  return ConfigDict(dict(
    seed=0,
    init_from='',                   # the --workdir of a run, trained or imported, whose last parameters training starts from
    data=dict(
      source='stdlib',              # tfm/data/sources: stdlib, text('*.txt'), tfds('name'), parallel(src, tgt), digits, …
      tokenizer='bytes',            # tfm/data/tokenizers: bytes, char, words, sentencepiece(8000)
      source_tokenizer=placeholder(str),  # of the source of a pair; None: the tokenizer, trained on both
      length=256,                   # tokens of one sequence; of an image, its patches and the class tokens
      packing='concat',             # tfm/data/packing: concat, first_fit; pairs: buckets; classes: each; answers: answered
      threads=2,                    # reading threads of the training pipeline
    ),
    model=dict(
      architecture='decoder',       # decoder, encoder_decoder, encoder
      layers=6,                     # of an encoder-decoder: its decoder's, as all that follows
      width=384,                    # D
      heads=6,                      # H
      kv_heads=placeholder(int),    # K; None: heads (multi-head); 1: multi-query; between: grouped
      head_width=placeholder(int),  # C; None: width / heads
      mixer='softmax',              # tfm/mixers
      position='rope',              # tfm/positions
      mask=placeholder(str),        # tfm/masks, combined with & | ~; None: causal, of an encoder full
      score='dot',                  # tfm/scores
      kernel='auto',                # tfm/kernels
      feed_forward='gelu',          # relu, gelu, geglu, swiglu, … of tfm/layers/mlp.py, mixture_of_experts(…), none
      feed_forward_width=placeholder(int),  # F, of one expert; None: 4 D, 8/3 D to the next 64 where gated, 0 without layer
      norm='layernorm',             # layernorm(epsilon, bias=…, scale=…), rmsnorm(epsilon)
      norm_placement='pre',         # pre, post, sandwich
      residual='sequential',        # sequential, parallel, parallel_one_norm
      bias=False,                   # in projections, and in layer norms that do not say themselves
      dropout=dict(embedding=0.0, attention=0.0, residual=0.0),
      tied=True,                    # the output reads the embedding table
      embedding_width=placeholder(int),  # of the table, lifted to D by a projection; None: D, without one
      embedding_scaled=False,       # the embedding is √D times the table
      embedding_norm=False,         # a norm after the embedding
      output_transform='',          # activation of a layer between the trunk and the vocabulary; '': none
      output_bias=False,            # of each token of the vocabulary
      output_soft_cap=0.0,          # logits of the vocabulary become cap · tanh(logits / cap); 0: they do not
      patch=0,                      # of an encoder of images: pixels a side of what is one token; 0: of texts
      token_types=0,                # of an encoder: embeddings for first and second text; 0: none
      class_tokens=placeholder(int),  # of images: learned tokens before the patches; None: as many as the pooling reads
      pooling='first',              # of an encoder: what a class is told from: first, mean; first_two: the mean of two heads
      pooled_transform='',          # and the activation of a layer before the class; '': none
      vocab_multiple=128,           # rows of the embedding table are rounded up to a multiple
      initializer='normal(0.02)',   # normal, truncated_normal, xavier_uniform, lecun_normal
      embedding_initializer='normal(0.02)',
      depth_scaled=True,            # projections into the residual stream start 1/√(2 layers) as large
      dtype='float32',              # of the compute: float32, bfloat16, float16; parameters are float32
      scan=True,                    # one compiled block, looped
      remat='none',                 # none, full, dots, dots_with_no_batch_dims
      pattern=(),                   # names in `blocks`, repeated over the layers; (): all alike
      blocks=dict(),                # name → the block fields that differ from the model's
      encoder=dict(),               # of an encoder-decoder: layers, pattern and block fields that differ
      cross=dict(),                 # and the fields of the cross-attention that differ
    ),
    objective='causal_lm',          # tfm/objectives: causal_lm(label_smoothing, z_loss), seq2seq, …
    lora=dict(                      # adapters, which alone are trained, with heads that are new; 0: none
      rank=0,
      alpha=16.0,                   # their scale, times the rank
      targets='mixer/(q|v)/',       # projections (regex on the path) that have one
    ),
    optimizer=dict(
      name='adamw',                 # adam, adamw(b1, b2, eps, weight_decay), adafactor, lion, sgd(momentum)
      learning_rate=1e-3,           # the peak; with noam a factor on d^-0.5
      schedule='cosine',            # noam, rsqrt, cosine(floor), linear(floor), wsd(decay), constant
      warmup=100,                   # steps
      clip=1.0,                     # global norm of the gradient; 0: no clipping
      no_decay=r'bias|scale|table|sinks|A_log|/D$',   # parameters (regex on the path) without weight decay
      frozen='',                    # parameters (regex on the path) that stay as they are; '': none
      layer_decay=1.0,              # factor on the learning rate from each layer to the one below it; 1.0: all learn alike
    ),
    training=dict(
      steps=1000,
      batch_size=32,                # sequences, over all devices and microbatches
      accumulation=1,               # microbatches of one step
      recurrence=0,                 # tokens of a piece of a row; earlier ones are remembered without gradient
                                    # (Transformer-XL, truncated backpropagation); 0: the row at once
      skip_spikes=0.0,              # times its running mean above which a gradient's norm makes its step be skipped; 0.0: none is
      loss_chunk=0,                 # tokens whose logits exist at once; 0: all of a microbatch
      log_every=10,                 # steps
      evaluate_every=100,           # steps
      save_every='evaluation',      # a checkpoint with every evaluation; steps(n); auto(hours): as often as loses least time
      near='',                      # a folder on a disk, or in the memory, of each machine, for checkpoints between those; '': none
      save_near='auto(hours=4.0)',  # a checkpoint there; as save_every, by failures that leave it there
      evaluation_batches=0,         # spread over the validation split; 0: all of it
      keep=2,                       # last checkpoints kept, besides the best
      profile=0,                    # steps to profile, from the third; 0: none
    ),
    decoding=dict(                  # in tfm generate and tfm evaluate; the first four of an encoder-decoder
      beams=1,                      # hypotheses kept side by side; 1: greedy
      penalty='gnmt(0.6)',          # of a hypothesis's length: gnmt(alpha), power(alpha)
      stopping='proven',            # when none better can come; 'likely': none would now; 'first': `beams` have ended
      longer=50,                    # tokens that a target may be longer than its source, as far as there are positions
      average=1,                    # checkpoints, the last ones, whose parameters are averaged when a run is read
    ),
    mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1, expert=1, stage=1),   # -1: the devices that are left
    slices=dict(                    # groups of devices with a slow network between them
      number=-1,                    # -1: as many as the devices say, as a TPU's do; others are one
      axis='data',                  # all that this network carries: data, stage
    ),
    pipeline=dict(                  # of a mesh with stages
      microbatches=0,               # of a batch, one after another; 0: about four for each stage
      repeats=1,                    # rounds that each makes, through thinner groups of layers (circular, interleaved)
    ),
    rules=dict(                     # logical axis → mesh axes, '' for none
      batch='data fsdp expert', length='sequence', vocab='tensor', heads='tensor', kv_heads='tensor', mlp='tensor',
      embed='fsdp', kv='', table='', classes='', pixels='', expert='expert', rank='', state='', taps='', gates='',
      layers='stage'),
  ), sort_keys=False)


def load(file: str) -> ConfigDict:
  """The config of `FILE` or `FILE:args`, complete, with those of further ones, `FILE+FILE:args`, laid over it; the argument
  `smoke` shrinks any config.

  Raises:
    ValueError: if a file is missing, has no `get_config`, or sets a field that is not there.
  """
  config, small = schema(), False
  for i, part in enumerate(file.split('+')):
    path, _, text = part.partition(':')
    args = [arg for arg in text.split(',') if arg]
    small |= 'smoke' in args
    own = ','.join(arg for arg in args if arg != 'smoke')
    given = from_json(path, own) if path.endswith('.json') else defined(path, 'get_config', '--config=')(own)
    require(i == 0 or not path.endswith('.json'), f'--config={file} lays a whole run, {path}, over another config; name it first')
    config = laid(config, given)
  return smoke(config) if small else config


def from_json(path: str, args: str = '') -> Mapping:
  """The config that a run left behind.

  Raises:
    ValueError: if there is no such file, it is no config, or there are arguments, of which it takes none.
  """
  require(not args, f"--config={path}:{args} takes no argument but 'smoke'")
  try:
    given = json.loads(pathlib.Path(path).read_text())
  except (OSError, ValueError) as error:
    raise ValueError(f'--config={path} cannot be read: {error}') from error
  require(isinstance(given, dict) and 'model' in given, f'--config={path} is no config of a run; DIR/config.json of a --workdir is')
  return given


def complete(given: Mapping) -> ConfigDict:
  """The schema with the given fields in place.

  Raises:
    ValueError: for a field that is not there or a value of the wrong type.
  """
  return laid(schema(), given)


def laid(config: ConfigDict, given: Mapping) -> ConfigDict:
  """A complete config with the given fields in place of its own.

  Raises:
    ValueError: for a field that is not there or a value of the wrong type.
  """
  given = ConfigDict(given)
  model = given.get('model')
  blocks = model.get('blocks') if isinstance(model, ConfigDict) else None
  for name in blocks if isinstance(blocks, ConfigDict) else ():
    if name not in config.model.blocks:
      config.model.blocks[name] = optional(BLOCK_FIELDS)
  if isinstance(model, ConfigDict) and 'architecture' in model:
    assign(config, 'model.architecture', model.architecture)  # first, as it brings sections
  for path, value in leaves(given):
    assign(config, path, value)
  return config


def optional(fields: Iterable[str]) -> dict[str, Any]:
  """Fields that exist for the command line; None is "as the model's"."""
  default = schema().model
  return {f: placeholder(default.get_type(f)) for f in fields}


def give_sections(model: ConfigDict) -> None:
  """The sections that an architecture has besides the model's own, unless they are there."""
  if model.architecture == 'encoder_decoder' and not model.encoder:
    model.encoder = optional(('layers', *BLOCK_FIELDS)) | dict(pattern=(), mask='full')
    model.cross = optional(CROSS_FIELDS) | dict(mask='full', position='none')


def parts(config: ConfigDict) -> dict[str, ConfigDict]:
  """Where → section, for every section that describes attention or whole blocks; the model's comes first."""
  model = config.model
  found = {'model': model, 'model.encoder': model.encoder, 'model.cross': model.cross}
  found |= {f'model.blocks.{name}': block for name, block in model.blocks.items()}
  return {where: part for where, part in found.items() if part}


def locate(config: ConfigDict, path: str, value: Any) -> tuple[ConfigDict, str]:
  """The section that holds `config.path.to.field` and the field's name in it; both must exist."""
  node, names = config, path.split('.')
  for depth, name in enumerate(names):
    if not isinstance(node, ConfigDict) or name not in node:
      section = '.'.join(['config', *names[:depth]])
      known = suggest(name, node) if isinstance(node, ConfigDict) else 'it has no fields of its own'
      raise ValueError(f'config.{path}={value!r} is not a field; under {section}: {known}')
    section, node = node, node[name]
  if isinstance(node, ConfigDict):
    raise ValueError(f'config.{path}={value!r} is a section; {suggest("", node)}')
  return section, names[-1]


def assign(config: ConfigDict, path: str, value: Any) -> None:
  """Sets `config.path.to.field`, which must exist and keep its type."""
  section, field = locate(config, path, value)
  # ConfigDict takes None for anything; here it is a value only where it has a meaning.
  may_be = value is not None or path.startswith(INHERITING) or dict(leaves(schema())).get(path) is None
  require(may_be, f'config.{path}=None must be of type {section.get_type(field).__name__}')
  try:
    section[field] = value
  except TypeError:
    raise ValueError(f'config.{path}={value!r} must be of type {section.get_type(field).__name__}') from None
  if path == 'model.architecture':
    give_sections(section)


def assign_text(config: ConfigDict, path: str, text: str) -> None:
  """Sets a field from its text on the command line: strings as they stand, the rest as literals."""
  section, field = locate(config, path, text)
  if section.get_type(field) is str:
    value = text
  else:
    try:
      value = ast.literal_eval({'true': 'True', 'false': 'False', 'none': 'None'}.get(text.lower(), text))
    except (ValueError, SyntaxError):
      value = text
  assign(config, path, value)


def leaves(config: Mapping, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """(dotted path, value) of every field."""
  for name, value in config.items():
    if isinstance(value, (Mapping, ConfigDict)) and len(value):
      yield from leaves(value, f'{prefix}{name}.')
    elif not isinstance(value, (Mapping, ConfigDict)):
      yield f'{prefix}{name}', value


def resolve(config: ConfigDict) -> ConfigDict:
  """A copy in which every None has become the value that it stands for."""
  config = config.copy_and_resolve_references()
  model = config.model
  if model.mask is None:
    model.mask = 'full' if model.architecture == 'encoder' else 'causal'
  if model.embedding_width is None:
    model.embedding_width = model.width
  if model.class_tokens is None:
    model.class_tokens = LEADING.get(model.pooling, 0) if model.patch else 0
  for part in (model.encoder, model.cross):
    inherit(part, model)
  for name, block in model.blocks.items():
    inherit(block, model.encoder if name in model.encoder.get('pattern', ()) else model)
  for where, block in parts(config).items():
    require(block.heads >= 1, f'config.{where}.heads={block.heads} must be at least 1')
    if block.head_width is None:
      require(model.width % block.heads == 0,
              f'config.{where}.heads={block.heads} does not divide config.model.width={model.width}; choose a '
              f'divisor, or set config.{where}.head_width')
      block.head_width = model.width // block.heads
    if block.kv_heads is None:
      block.kv_heads = block.heads
    if 'feed_forward' in block and block.feed_forward_width is None:
      try:
        block.feed_forward_width = usual_hidden(block.feed_forward, model.width)
      except ValueError as error:
        raise ValueError(f'config.{where}.feed_forward={error}') from error
  return config


def inherit(part: ConfigDict, whole: ConfigDict) -> None:
  """Fills what a section leaves open from the one that it is a part of."""
  # What follows from the whole's heads must follow from the part's own where it has some.
  own = ('kv_heads', 'head_width') if part and part.heads not in (None, whole.heads) else ()
  if part.get('feed_forward') == 'none':
    own += ('feed_forward_width',)
  for field, value in part.items():
    if value is None and field not in own:
      part[field] = whole[field]


def require(condition: bool, sentence: str) -> None:
  """Raises ValueError with the sentence unless the condition holds."""
  if not condition:
    raise ValueError(sentence)


def smoke(config: ConfigDict) -> ConfigDict:
  """The same run in miniature: a few steps of a tiny model, seconds on a CPU, every slot kept."""
  config = complete(config)
  model, training = config.model, config.training
  # Multi-head, grouped-query and multi-query attention stay what they are.
  for part in reversed(parts(config).values()):
    if part.kv_heads is not None:
      part.kv_heads = 1 if part.kv_heads == 1 else 2 if part.kv_heads < (part.heads or model.heads) else 4
    part.update({field: None for field in ('heads', 'head_width', 'feed_forward_width') if field in part})
    if 'pattern' in part:
      part.layers = max(2, len(part.pattern))
  lifted = model.embedding_width not in (None, model.width)
  model.update(width=32, heads=4, embedding_width=16 if lifted else None)
  if not model.patch:  # an image has as many tokens as it has
    config.data.length = min(config.data.length, 32)
  training.accumulation = min(training.accumulation, 2)
  training.update(steps=4, batch_size=8 * training.accumulation, log_every=1, evaluate_every=2,
                  evaluation_batches=1, profile=0)
  config.optimizer.warmup = min(config.optimizer.warmup, 2)
  config.decoding.average = min(config.decoding.average, 2)
  return config


def to_json(config: ConfigDict) -> str:
  """Readable JSON."""
  return json.dumps(config.to_dict(), indent=2) + '\n'


def difference(old: Mapping, new: Mapping) -> list[str]:
  """One line for every field that matters and differs: `field: old → new`.

  The number of steps matters to the schedules that look at it.
  """
  endless = parse(old['optimizer']['schedule']).name in ENDLESS
  before, after = dict(leaves(old)), dict(leaves(new))
  lines = []
  for path in dict.fromkeys((*before, *after)):
    free = any(path == f or path.startswith(f'{f}.') or _block_field(path, f) for f in FREE_FIELDS)
    free |= endless and path == 'training.steps'
    a, b = before.get(path), after.get(path)
    a, b = (tuple(x) if isinstance(x, list) else x for x in (a, b))
    if a != b and not free:
      lines.append(f'{path}: {a!r} → {b!r}')
  return lines


def _block_field(path: str, free: str) -> bool:
  """Whether `path` is a part's own form of a free field of the model."""
  return path.startswith(INHERITING) and free == f'model.{path.rpartition(".")[2]}'
