"""A model with its parameters, from a run or a published checkpoint: one object for both."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tfm.config.assemble import Experiment
from tfm.decoding import beam, loop
from tfm.decoding.sampling import Sampling
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import require
from tfm.evaluation.attention_maps import AttentionMaps
from tfm.hf import text_length
from tfm.hf.families import longformer
from tfm.hf.families.protocol import Family
from tfm.hf.forward import FORWARD, INPUT_CONDITIONS, INPUT_NAMES, Inputs
from tfm.hf.from_config import build_model, load_families
from tfm.hf.model_inputs import (
  as_texts,
  build_context,
  end_texts,
  pad_rows,
  read_images,
  validate_padding,
  validate_positions,
)
from tfm.mixers.protocol import Context
from tfm.models.trunk import Trunk
from tfm.parallel import host_arrays, sharding
from tfm.runs import load as runs
from tfm.runs.text_attention import compute_text_maps
from tfm.shapes import Array
from tfm.spec import parse


@dataclasses.dataclass(frozen=True)
class LoadedModel(runs.Run):
  """A trained model with its parameters and its tokenizer: what `tfm.load` and `tfm.from_pretrained` return.

  Texts and token ids are both inputs: a text, a list of texts, or an array [B, T]. Attributes as of
  `tfm.runs.load.Run`: config, model, params, tokenizer, step, …
  """

  @classmethod
  def from_run(cls, run: runs.Run) -> 'LoadedModel':
    """The same run."""
    return cls(**{field.name: getattr(run, field.name) for field in dataclasses.fields(runs.Run)})

  @property
  def family(self) -> Family | None:
    """The published family that it was read from; None for another run."""
    return load_families()[self.published['family']] if self.published else None

  @property
  def output(self) -> str:
    """What it computes, one of `tfm.hf.families.protocol.OUTPUTS`."""
    objective = parse(self.config.objective)
    if objective.name == 'classification':
      return 'token_classes' if objective.kwargs.get('words') else 'classes'
    if objective.name == 'contrastive':
      return 'pairs'
    return (self.published or {}).get('output') or 'vocabulary'

  @property
  def ids(self) -> dict[str, Any]:
    """The ids of special tokens: 'start', 'eos' and 'pad', those that exist."""
    if 'ids' in self._published:
      return self._published['ids']
    return {} if self.tokenizer is None else dict(eos=self.tokenizer.eos_id, start=self.tokenizer.bos_id)

  @property
  def vocab(self) -> int:
    """The size of the vocabulary; 0 for images."""
    if 'vocab' in self._published:
      return self._published['vocab']
    return self.tokenizer.vocab_size if self.tokenizer else 0

  @property
  def source_vocab(self) -> int:
    """The size of a separate source vocabulary; 0: none."""
    if 'source_vocab' in self._published:
      return self._published['source_vocab']
    return self.source_tokenizer.vocab_size if self.source_tokenizer else 0

  @property
  def _published(self) -> Mapping[str, Any]:
    """What config.json of a published model says; it counts also where it is empty, as of images."""
    return self.published or {}

  def logits(
    self,
    input_ids: Array | str | Sequence[str] | None = None,
    attention_mask: Array | None = None,
    token_type_ids: Array | None = None,
    decoder_input_ids: Array | None = None,
    pixel_values: Array | None = None,
    global_attention_mask: Array | None = None,
  ) -> np.ndarray:
    """The model's output, float32: logits [B, T, V] or [B, classes]; of an image-text model [images, texts];
    of a published model without an output, the last hidden states [B, T, D].

    Args:
      input_ids: int [B, T]; or texts, which become ids as in training (`encode`) and are padded on the right.
      attention_mask: 1 for tokens, 0 for padding, which may be on either side; positions count from the
        first token.
      token_type_ids: for encoders with token types.
      decoder_input_ids: for encoder-decoders, [B, T]; `input_ids` are then the source.
      pixel_values: images, [B, channels, H, W], as in the published implementation; image-text models require
        texts, too.
      global_attention_mask: for Longformer, [B, T]: 1 for tokens with global attention; replaces the
        default of the published class.
    """
    if texts := as_texts(input_ids):
      require(
        attention_mask is None, 'attention_mask belongs to input_ids, and texts have their own; remove it'
      )
      input_ids, attention_mask = self.encode_rows(texts)
    arguments = dict(
      input_ids=input_ids,
      attention_mask=attention_mask,
      token_type_ids=token_type_ids,
      decoder_input_ids=decoder_input_ids,
      pixel_values=pixel_values,
      global_attention_mask=global_attention_mask,
    )
    m = self.config.model
    kind = 'vision' if m.patch and m.architecture == 'encoder' else m.architecture
    for name, value in arguments.items():
      is_read = name in INPUT_NAMES[kind] and INPUT_CONDITIONS.get(name, bool)(m)
      require(value is None or is_read, f'{name} is not an input of {self.kind}; remove it')
    main = INPUT_NAMES[kind][0]
    require(arguments[main] is not None, f'{self.kind} requires {main}; pass it')
    require(
      kind != 'encoder_decoder' or decoder_input_ids is not None,
      "a model of architecture 'encoder_decoder' requires decoder_input_ids; pass them",
    )
    images = None
    if kind == 'vision':
      images = read_images(pixel_values, self.model.shape)
      model, inputs, context = self.model, images, self.model.example(len(images), 0)[1]
    else:
      inputs, context = jnp.asarray(input_ids), self.build_context(input_ids, attention_mask)
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
    if kind == 'image_text':
      require(pixel_values is not None, f'{self.kind} requires pixel_values; pass them')
      images = read_images(pixel_values, model.encoder.keywords['shape'])
      if self.family:  # texts of other runs end in their last token
        context = end_texts(inputs, context, self.ids['eos'])
    with sharding.context(self.mesh, self.rules):
      arrays = Inputs(inputs, context, token_type_ids, decoder_input_ids, images)
      return host_arrays.fetch(FORWARD[kind](model, self.params, self.output, arrays))

  def generate(  # more than six parameters: those of the published method
    self,
    input_ids: Array | str | Sequence[str],
    attention_mask: Array | None = None,
    *,
    max_new_tokens: int | None = None,
    num_beams: int = 1,
    eos_id: int | None = None,
    do_sample: bool | None = None,
    seed: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool = False,
    **sampling: Any,
  ) -> np.ndarray | str | list[str]:
    """Continues each row, or translates it if the model is an encoder-decoder: greedily, by sampling, or by
    beam search.

    Returns:
      Of a text, that text with its continuation, up to the end of a text, or its translation; a list for a
      list. Of ids, the new tokens alone, int32 [B, N]; a row that ended includes its end token and is padded.

    Args:
      max_new_tokens: None: 256, or as many as the model has positions for.
      eos_id: the token that ends a row; None: none, and for texts the tokenizer's.
      do_sample: None: whether there are fields of sampling.
      seed, **sampling: fields of `tfm.decoding.sampling.Sampling`, such as temperature=0.8, top_p=0.95.
      length_penalty, early_stopping: of beam search, as in `transformers`.
    """
    do_sample = bool(sampling) if do_sample is None else do_sample
    require(
      num_beams == 1 or not do_sample,
      f'num_beams={num_beams} (beam search) and do_sample=True exclude each other; use one',
    )
    require(do_sample or not sampling, f'{next(iter(sampling), "")} requires do_sample=True')
    prompts, sources = self.build_prompts(input_ids, attention_mask)
    texts = as_texts(input_ids)
    eos_id = self.tokenizer.eos_id if texts and eos_id is None else eos_id
    if max_new_tokens is None:
      max_new_tokens = loop.default_max_tokens(self.model, prompts)
    if num_beams > 1:
      stopping = 'first' if early_stopping else 'likely'
      settings = beam.BeamSearch(num_beams, beam.Power(length_penalty), stopping)
      hypotheses = self.search(
        input_ids, attention_mask, max_new_tokens=max_new_tokens, settings=settings, eos_id=eos_id
      )
      rows = [best[0].tokens for best in hypotheses]
    else:
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
    if texts:
      starts = texts if sources is None else [''] * len(texts)
      generated = [start + self.tokenizer.decode(row) for start, row in zip(starts, rows)]
      return generated[0] if isinstance(input_ids, str) else generated
    if eos_id is not None:
      rows = [row if len(row) == max_new_tokens else np.append(row, eos_id) for row in rows]
    pad = next(x for x in (self.ids.get('pad'), eos_id, 0) if x is not None)
    return pad_rows(rows, pad)

  def search(
    self,
    input_ids: Array | str | Sequence[str],
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

  def attention(
    self,
    text: str,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
  ) -> dict[str, AttentionMaps]:
    """The attention weights of a text, by kind: 'encoder' or 'decoder', and 'cross' of an encoder-decoder.

    `model.attention('def f')['decoder'].layers[0][1]` is the matrix [T, S] of head 1 in layer 0; `queries`
    and `keys` label its rows and columns.

    Args:
      target: of an encoder-decoder; None: the model's translation.
      layers, heads: those to include, from 0; None: all.

    Raises:
      ValueError: for a text that is too long, and for a model without tokenizer.
    """
    self.require_tokenizer()
    return {maps.kind: maps for maps in compute_text_maps(self, text, target, layers, heads)[0]}

  def evaluate(self, split: str = 'validation', source: str | None = None) -> dict[str, float]:
    """The metrics of the objective on a whole split, as `tfm evaluate` prints them.

    Args:
      split: 'train', 'validation' or 'test'.
      source: the spec of other data, such as 'text("plays/*.txt")'; None: the data of the training.

    Raises:
      ValueError: for a split that the data do not have, and for a published model without `source`.
    """
    if source is None:
      require(
        bool(self.corpus), "a published model has no data of its own; pass source='text(…)' or another one"
      )
      return runs.evaluate(self, split).metrics
    if self.experiment.tokenizer:
      self.require_tokenizer()
    config = self.config.copy_and_resolve_references()
    config.data.source = source
    return runs.evaluate(dataclasses.replace(self, experiment=Experiment(config), corpus=''), split).metrics

  def encode_rows(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The ids [B, T] of texts, padded on the right, and their attention mask."""
    self.require_tokenizer()
    rows = [self.encode(text) for text in texts]
    mask = pad_rows([np.ones_like(row) for row in rows], 0)
    return pad_rows(rows, self.pad_id), mask

  @property
  def pad_id(self) -> int:
    """The id of padding after texts."""
    pad = self.ids.get('pad')
    return self.tokenizer.eos_id if pad is None else pad

  def build_prompts(
    self, input_ids: Array | str | Sequence[str], attention_mask: Array | None
  ) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """(prompts, sources) from texts or from rows with padding; for a decoder the rows are prompts, and
    sources are None.
    """
    is_pair = self.config.model.architecture == 'encoder_decoder'
    require(
      is_pair or self.config.model.architecture == 'decoder',
      'an encoder generates no text; use logits, or tfm generate for the masks of one of texts',
    )
    self.require_generation()
    if texts := as_texts(input_ids):
      self.require_tokenizer()
      rows, start = [self.encode(text) for text in texts], is_pair and self.tokenizer.target_prompt_ids()
    else:
      ids = np.asarray(input_ids)
      mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
      rows = [row[attended > 0].astype(np.int32) for row, attended in zip(ids, mask)]
      require(
        not is_pair or self.ids.get('start') is not None,
        'config.json has no decoder_start_token_id, which generation requires; add it',
      )
      start = is_pair and np.array([self.ids['start']], np.int32)
    return ([start for _ in rows], rows) if is_pair else (rows, None)

  def build_context(self, ids: Array, mask: Array | None) -> Context:
    """The context of rows of one document each."""
    if self.family is None and mask is None:
      return Context.contiguous(jnp.asarray(ids))  # as in training
    counting = self.family.position_counting if self.family else 'attended'
    return build_context(ids, mask, counting, self.ids.get('pad'))

  @property
  def kind(self) -> str:
    """What it is, in messages."""
    m = self.config.model
    return (
      f'model_type={self.family.model_type!r}'
      if self.family
      else f'a model of architecture={m.architecture!r}'
    )

  def require_tokenizer(self) -> None:
    """Raises ValueError for a model that cannot read texts."""
    require(
      self.tokenizer is not None,
      f'{self.kind} has no tokenizer, so it reads no texts; pass ids, or add the files of its tokenizer',
    )

  def model_for_length(self, length: int) -> Trunk:
    """The model for texts of a length; it differs from `model` only if its rotary scaling depends on the
    length.
    """
    if not (self.published and text_length.parts_by_length(self.config)):
      return self.model
    config = self.config.copy_and_resolve_references()
    config.data.length = length
    return build_model(config, self.vocab, self.source_vocab)

  def model_for_generation(self, length: int) -> Trunk:
    """The model that continues prompts, the longest of `length` tokens: a rotary scaling that depends on the
    length of the text changes with every token, as in the published implementation.
    """
    if not (self.published and text_length.parts_by_length(self.config)):
      return self.model
    return build_model(text_length.follow_length(self.config, length), self.vocab, self.source_vocab)


def load(workdir: str, step: str = 'last', average: int | None = None) -> LoadedModel:
  """Loads a run, with its parameters and its tokenizer.

  Args:
    workdir: the directory that `tfm train` or `tfm import` wrote.
    step: which checkpoint: 'last', 'best' or a number.
    average: how many checkpoints up to that one to average; None: config.decoding.average_checkpoints.

  Raises:
    ValueError: if there is no run or no such checkpoint, or if it cannot be used on these devices.
  """
  return LoadedModel.from_run(runs.load(workdir, str(step), average))
