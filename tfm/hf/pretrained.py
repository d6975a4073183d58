"""A published checkpoint as a model of ours: its config.json becomes a config, its tensors parameters."""

import dataclasses
import functools
import json
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
from tfm.decoding.unrolled import unrolled
from tfm.errors import require, suggest
from tfm.hf.families import longformer, rope, tensors
from tfm.hf.families.protocol import Family
from tfm.hf.from_config import declared, family_of, model_of
from tfm.mixers.protocol import Context
from tfm.models.trunk import Trunk
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.shapes import Array, PyTree
from tfm.spec import parse
from tfm.training import checkpoint
from tfm.training import state as states


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A published model, ready to be asked.

  Attributes:
    config: resolved; model, params: what it says.
    family: that it was read by; output: what it answers, one of `tfm.hf.families.protocol.OUTPUTS`.
    ids: of the tokens that begin, end and fill up a text, by 'start', 'eos' and 'pad', where config.json tells.
    vocab: how many tokens there are; source_vocab: of the source, where it has a vocabulary of its own, else 0.
    mesh, rules: where the parameters live.
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
    """What the published model answers, float32: logits [B, T, V] or [B, classes], or where it has no output the last
    hidden states [B, T, D].

    Args:
      input_ids: int [B, T]; attention_mask: 1 where there is a token, 0 for padding, on either side; positions count
        from the first token of a row.
      token_type_ids: of encoders that have types.
      decoder_input_ids: of encoder-decoders, [B, T]; `input_ids` are then the source.
      pixel_values: of images, [B, channels, H, W], as the published implementation has them.
      global_attention_mask: of a Longformer, [B, T]: 1 where a token sees all and is seen by all, instead of where its
        class would have such tokens.
    """
    given = dict(
      input_ids=input_ids,
      attention_mask=attention_mask,
      token_type_ids=token_type_ids,
      decoder_input_ids=decoder_input_ids,
      pixel_values=pixel_values,
      global_attention_mask=global_attention_mask,
    )
    m = self.config.model
    kind = 'vision' if m.patch else m.architecture
    for name, value in given.items():
      read = name in READS[kind] and NEEDED.get(name, bool)(m)
      require(
        value is None or read, f'{name} was given, and {self.family.model_type!r} reads none; leave it out'
      )
    [main, *_] = READS[kind]
    require(given[main] is not None, f'{self.family.model_type!r} reads {main}; give them')
    require(
      kind != 'encoder_decoder' or decoder_input_ids is not None,
      "decoder_input_ids are what a model of architecture 'encoder_decoder' continues; give them",
    )
    if kind == 'vision':
      images = jnp.moveaxis(jnp.asarray(pixel_values), 1, -1)
      require(
        images.shape[1:] == self.model.shape,
        f'pixel_values are {np.shape(pixel_values)[1:]}, channels × height × '
        f'width, and the model reads {self.model.shape[2:] + self.model.shape[:2]}',
      )
      model, inputs, context = self.model, images, self.model.example(len(images), 0)[1]
    else:
      inputs, context = (
        jnp.asarray(input_ids),
        context_of(input_ids, attention_mask, self.family.counts, self.ids.get('pad')),
      )
      model = self.at(context.positions.shape[1])
      if global_attention_mask is not None:
        model = model_of(longformer.told(self.config), self.vocab, self.source_vocab)
        context = context.replace(
          prefix=jnp.where(jnp.asarray(global_attention_mask) > 0, context.positions + 1, -1)
        )
      refuse_gaps(self.config, context)
      refuse_beyond(model, context)
      first = self.output != 'classes' or m.pooling != 'first' or (context.segments[:, 0] > 0).all()
      require(
        first, 'attention_mask hides the first id of a row, which its class is told from; pad on the right'
      )
    with sharding.context(self.mesh, self.rules):
      return np.asarray(
        ANSWERS[kind](model, self.params, self.output, inputs, context, token_type_ids, decoder_input_ids)
      )

  def generate(
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
    """The tokens that follow each row, int32 [B, N], without the prompt: greedy, sampled, or of beam search; a row that
    ended keeps its end, and is filled up.

    Args:
      eos_id: the token that ends a row; None: none does.
      seed, **sampling: of `tfm.decoding.sampling.Sampling`, with do_sample.
      length_penalty, early_stopping: of beam search, as `transformers` has them.
    """
    require(
      num_beams == 1 or not do_sample, f'num_beams={num_beams} searches and do_sample=True draws; choose one'
    )
    require(do_sample or not sampling, f'{next(iter(sampling), "")} is for sampling; give do_sample=True too')
    if num_beams > 1:
      found = self.search(
        input_ids,
        attention_mask,
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        eos_id=eos_id,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
      )
      rows = [best[0].tokens for best in found]
    else:
      prompts, sources = self.prompts(input_ids, attention_mask)
      drawn = Sampling(**{'temperature': 1.0} | sampling) if do_sample else Sampling(temperature=0.0)
      with sharding.context(self.mesh, self.rules):
        made = [
          *loop.generate(
            *unrolled(self.model, self.params),
            prompts,
            max_tokens=max_new_tokens,
            eos=eos_id,
            sources=sources,
            sampling=drawn,
            seed=seed,
          )
        ]
      rows = [np.concatenate(parts) for parts in zip(*made)]
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
    num_beams: int,
    eos_id: int | None = None,
    length_penalty: float = 1.0,
    early_stopping: bool = False,
  ) -> list[list[beam.Hypothesis]]:
    """The `num_beams` best continuations of each row with their scores, log p over length^length_penalty, the best
    first. Lengths are of new tokens, as in `transformers`."""
    prompts, sources = self.prompts(input_ids, attention_mask)
    with sharding.context(self.mesh, self.rules):
      return beam.search(
        *unrolled(self.model, self.params),
        prompts,
        max_tokens=max_new_tokens,
        beams=num_beams,
        sources=sources,
        eos=-1 if eos_id is None else eos_id,
        penalty=beam.Power(length_penalty),
        stopping='first' if early_stopping else 'likely',
      )

  def prompts(
    self, input_ids: Array, attention_mask: Array | None
  ) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Rows without padding, as what is continued, or as sources of targets that begin."""
    ids = np.asarray(input_ids)
    mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
    rows = [row[kept > 0].astype(np.int32) for row, kept in zip(ids, mask)]
    if self.config.model.architecture != 'encoder_decoder':
      return rows, None
    require(
      self.ids.get('start') is not None, 'config.json tells no decoder_start_token_id, so no text can begin'
    )
    return [np.array([self.ids['start']], np.int32) for _ in rows], rows

  def at(self, length: int) -> Trunk:
    """The model for texts of a length: the same, but where a rotation was published that changes with it."""
    texts = [part.position for part in schema.parts(self.config).values() if part.get('position')]
    if not any(rope.longest_matters(text) for text in texts):
      return self.model
    config = self.config.copy_and_resolve_references()
    config.data.length = length
    return model_of(config, self.vocab, self.source_vocab)


def context_of(ids: Array, mask: Array | None, counts: str = 'shown', pad: int | None = None) -> Context:
  """Rows of one document each, with padding where the mask is 0; positions count what `counts`, one of
  `tfm.hf.families.protocol.COUNTS`, says."""
  ids = np.asarray(ids)
  mask = np.ones(ids.shape, np.int32) if mask is None else np.asarray(mask, np.int32)
  if counts == 'filled':
    positions = np.where(ids == pad, -1, np.cumsum(ids != pad, 1) - 1)  # -1: the table's row of padding
  else:
    positions = np.maximum(np.cumsum(mask if counts == 'shown' else np.ones_like(mask), 1) - 1, 0)
  return Context(jnp.asarray(positions, jnp.int32), jnp.asarray(mask), jnp.zeros_like(jnp.asarray(mask)))


def refuse_gaps(config: ConfigDict, context: Context) -> None:
  """Refuses padding between tokens where positions do not count it and a mask, that asks for them, should."""
  index, shown = np.arange(context.positions.shape[1]), np.asarray(context.segments) > 0
  ahead, most = np.asarray(context.positions) - index, len(index)
  gap = (np.where(shown, ahead, -most).max(1) > np.where(shown, ahead, most).min(1)).any()
  gap &= config.model.architecture == 'encoder'
  require(
    not gap or all(part.mask == 'full' for part in schema.parts(config).values()),
    'input_ids have padding between the tokens of a row, which their windows would have to count; leave it out',
  )


def refuse_beyond(model: Trunk, context: Context) -> None:
  """Refuses tokens at positions that the model cannot tell."""
  reach = min((made().reach for made in model.positions if made().reach is not None), default=math.inf)
  last = int(context.positions.max(initial=0))
  require(last < reach, f'input_ids reach position {last}, and the model has {reach}; give shorter rows')


@functools.partial(jax.jit, static_argnums=(0, 2))
def decoder(model, params, output, ids, context, types, targets):
  """Logits after each token, or hidden states."""
  if output == 'features':
    return model.apply({'params': params}, ids, context, method='features')[0].astype(jnp.float32)
  return model.apply({'params': params}, ids, context)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def encoder(model, params, output, ids, context, types, targets):
  """Logits of hidden tokens or of classes, or hidden states."""
  if output == 'features':
    return model.apply({'params': params}, ids, context, types, method='features').astype(jnp.float32)
  answers, _ = model.apply({'params': params}, ids, context, types)
  return answers['vocabulary' if output == 'vocabulary' else 'classification']


@functools.partial(jax.jit, static_argnums=(0, 2))
def encoder_decoder(model, params, output, ids, context, types, targets):
  """Logits after each token of the target, or its hidden states."""
  ahead = Context.whole(targets)
  if output == 'features':
    memory = model.apply({'params': params}, ids, context, method='encode')
    return model.apply({'params': params}, targets, ahead, None, memory, method='features')[0].astype(
      jnp.float32
    )
  return model.apply({'params': params}, targets, ahead, None, ids, context)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def vision(model, params, output, images, context, types, targets):
  """Logits of classes, or hidden states."""
  if output == 'features':
    return model.apply({'params': params}, images, context, method='features').astype(jnp.float32)
  return model.apply({'params': params}, images, context)[0]['classification']


ANSWERS = dict(decoder=decoder, encoder=encoder, encoder_decoder=encoder_decoder, vision=vision)
# And what each reads; the first must be given.
READS = dict(
  decoder=('input_ids', 'attention_mask'),
  encoder=('input_ids', 'attention_mask', 'token_type_ids', 'global_attention_mask'),
  encoder_decoder=('input_ids', 'attention_mask', 'decoder_input_ids'),
  vision=('pixel_values',),
)
# What only some models read, which config.model tells.
NEEDED = {
  'token_type_ids': lambda m: m.token_types > 0,
  'global_attention_mask': lambda m: parse(m.mixer).name == 'longformer',
}


def from_pretrained(path: str, dtype: str = 'float32', mesh: dict[str, int] | None = None) -> Pretrained:
  """A published checkpoint: a local folder with config.json and model.safetensors, whole or in parts, or the name of one
  on the hub, which `huggingface_hub` fetches where there is a network.

  Args:
    dtype: of parameters and of the compute: float32, bfloat16, float16.
    mesh: how many devices along which axis, as in config.mesh; None: one device has everything.

  Raises:
    ValueError: for a folder that is none, a family, class, field or tensor that is not understood, by name.
  """
  folder = located(path)
  fields = json.loads((folder / 'config.json').read_text())
  family = family_of(fields, folder)
  config, output, ids, vocab, source_vocab = declared(family, fields)
  stored = tensors.Tensors(folder)
  settle(config, output, family, stored)
  require(dtype in assemble.DTYPES, f'dtype={dtype!r} is not there; {suggest(str(dtype), assemble.DTYPES)}')
  config.model.dtype = dtype
  model = model_of(config, vocab, source_vocab)
  made = meshes.make(mesh) if mesh else meshes.make(dict(data=1), jax.devices()[:1])
  rules = sharding.parse_rules(config.rules)
  boxed = jax.eval_shape(
    lambda key: states.parameters(model, key, 1, min(config.data.length, 16)), jax.random.key(0)
  )
  sharding.validate_divisibility(boxed, made, rules)
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, assemble.DTYPES[dtype]), nn.unbox(boxed))
  wanted = checkpoint.target(abstract, sharding.named_shardings(boxed, made, rules))
  params = tensors.load(
    stored, family.weights(config), wanted, family.prefix, family.ignored, family.left_out
  )
  return Pretrained(config, model, params, family, output, ids, vocab, made, rules, source_vocab)


def settle(config: ConfigDict, output: str, family: Family, stored: tensors.Tensors) -> None:
  """What only the tensors tell, whether the output is tied to the embedding; and those that are no parameters are
  looked at, and put aside.

  Raises:
    ValueError: for tables that are to be one and differ, and constants that are others.
  """
  twins = family.twins(config)
  for bare in ('', family.prefix):
    stored.merge([name.removeprefix(bare) for name in twins])
    for name, values in family.constants(config):
      stored.expect(name.removeprefix(bare), values)
  if not family.head or output != 'vocabulary':
    return
  if family.head not in stored.names:
    config.model.tie_embeddings = True
  elif config.model.tie_embeddings and stored.same(twins[0], family.head):
    stored.merge((twins[0], family.head))
  else:
    config.model.tie_embeddings = False


def located(path: str) -> pathlib.Path:
  """The folder of a checkpoint; what is no folder here is looked for on the hub.

  Raises:
    ValueError: if it is neither.
  """
  folder = pathlib.Path(path).expanduser()
  if not folder.exists() and len(pathlib.PurePath(path).parts) == 2 and not path.startswith(('.', '/', '~')):
    import huggingface_hub

    try:
      folder = pathlib.Path(
        huggingface_hub.snapshot_download(
          path, allow_patterns=['*.json', '*.safetensors', '*.txt', '*.model', '*.spm']
        )
      )
    except Exception as error:  # of the library, of what it is made of, of the system
      [why, *_] = str(error).splitlines() or [type(error).__name__]
      raise ValueError(f'{path} is no folder here, and the hub does not give it: {why.strip()}') from error
  require((folder / 'config.json').is_file(), f'{path} holds no config.json; a published checkpoint does')
  return folder
