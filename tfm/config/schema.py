"""Every field of a config, with its default.

A config file returns only the fields that differ from the defaults: `get_config(arg) -> ConfigDict`. The
loader adds the rest, so `--config.any.field=value` works for every field.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


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
  'bias',
)

# The fields that the cross-attention of an encoder-decoder has too.
CROSS_FIELDS = ('heads', 'kv_heads', 'head_width', 'mixer', 'position', 'mask', 'score', 'kernel', 'bias')

# Sections in which None means "as the model's".
INHERITING = ('model.blocks.', 'model.encoder.', 'model.cross.')


def default_config() -> ConfigDict:
  """Every field with its default. None means "derived from other fields", by `resolve_config`."""
  return ConfigDict(
    dict(
      seed=0,
      init_from='',  # the --workdir of a trained or imported run whose parameters training starts from
      data=dict(
        source='stdlib',  # tfm/data/sources: stdlib, text('*.txt'), tfds('name'), parallel(…), digits, …
        tokenizer='bytes',  # tfm/data/tokenizers: bytes, char, words, sentencepiece(8000)
        source_tokenizer=placeholder(str),  # for the source of pairs; None: one tokenizer for both sides
        length=256,  # tokens of a row; for images: patches and class tokens
        packing='concat',  # tfm/data/packing: concat, first_fit, buckets (pairs), each (classes), …
        reader_threads=2,  # threads that prepare training batches
      ),
      model=dict(
        architecture='decoder',  # decoder, encoder_decoder, encoder
        layers=6,  # in an encoder-decoder this and the following describe the decoder
        width=384,  # D
        heads=6,  # H
        kv_heads=placeholder(int),  # K; None: heads (multi-head); 1: multi-query; between: grouped
        head_width=placeholder(int),  # C; None: width / heads
        mixer='softmax',  # tfm/mixers
        position='rope',  # tfm/positions
        mask=placeholder(str),  # tfm/masks, combined with & | ~; None: causal, or full in encoders
        score='dot',  # tfm/scores
        kernel='auto',  # tfm/kernels
        feed_forward='gelu',  # tfm/feed_forwards: relu, gelu, swiglu, mixture_of_experts(…), none, …
        # F, of each expert; None: 4 D, or 8/3 D rounded up to a multiple of 64 if gated, or 0 for 'none'.
        feed_forward_width=placeholder(int),
        norm='layernorm',  # tfm/norms: layernorm(epsilon, bias=…, scale=…), rmsnorm(epsilon)
        norm_placement='pre',  # pre, post, sandwich
        residual='sequential',  # tfm/residuals: sequential, parallel, parallel_one_norm
        bias=False,  # of projections, and of layer norms whose spec does not set it
        dropout=dict(embedding=0.0, attention=0.0, residual=0.0),
        tie_embeddings=True,  # the output layer uses the embedding table
        embedding_width=placeholder(
          int
        ),  # of the table, followed by a projection to D; None: D, no projection
        scale_embeddings=False,  # multiply embeddings by √D
        embedding_norm=False,  # a norm after the embedding
        output_transform='',  # activation of an extra layer before the output layer; '': no such layer
        output_bias=False,  # a bias per token of the vocabulary
        output_soft_cap=0.0,  # output logits become cap · tanh(logits / cap); 0: no cap
        patch=0,  # image encoders: patch size in pixels; 0: the model reads text
        token_types=0,  # encoders: embeddings of first and second text; 0: none
        class_tokens=placeholder(int),  # images: learned tokens before the patches; None: as `pooling` needs
        pooling='first',  # encoders: what classifies: first, mean; first_two: the mean of two heads
        pooled_transform='',  # activation of an extra layer before the classifier; '': no such layer
        vocab_multiple=128,  # the embedding table's rows are rounded up to a multiple of this
        initializer='normal(0.02)',  # normal, truncated_normal, xavier_uniform, lecun_normal
        embedding_initializer='normal(0.02)',
        depth_scaled=True,  # scale initial projections into the residual stream by 1/√(2 layers)
        dtype='float32',  # of computation: float32, bfloat16, float16; parameters are float32
        scan=True,  # compile one block and loop over layers
        remat='none',  # none, full, dots, dots_with_no_batch_dims
        pattern=(),  # names in `blocks`, repeated over the layers; (): all layers are equal
        blocks=dict(),  # name → block fields that differ from the model's
        encoder=dict(),  # encoder-decoders: the encoder's layers, pattern and differing block fields
        cross=dict(),  # encoder-decoders: the differing fields of cross-attention
      ),
      objective='causal_lm',  # tfm/objectives: causal_lm(label_smoothing, z_loss), seq2seq, …
      lora=dict(  # low-rank adapters; only they and new heads are trained
        rank=0,  # 0: no adapters
        alpha=16.0,  # scale of the adapters, times the rank
        targets='mixer/(q|v)/',  # regex on parameter paths: projections with an adapter
      ),
      optimizer=dict(
        name='adamw',  # tfm/optimizers: adam, adamw(b1, b2, weight_decay), adafactor, lion, sgd(momentum)
        learning_rate=1e-3,  # the peak; with noam a factor on d^-0.5
        schedule='cosine',  # noam, rsqrt, cosine(floor), linear(floor), wsd(decay), constant
        warmup=100,  # steps
        clip=1.0,  # global norm of the gradient; 0: no clipping
        no_decay=r'bias|scale|table|sinks|A_log|/D$',  # regex on parameter paths: no weight decay
        frozen='',  # regex on parameter paths: parameters that are not trained; '': none
        layer_decay=1.0,  # learning-rate factor from each layer to the one below; 1.0: the same rate
      ),
      training=dict(
        steps=1000,
        batch_size=32,  # sequences, over all devices and microbatches
        gradient_accumulation=1,  # microbatches per step
        # Transformer-XL recurrence: tokens of a segment, which attends to earlier ones without gradient; 0:
        # none.
        recurrence_length=0,
        skip_spikes=0.0,  # skip steps whose gradient norm exceeds this times its running mean; 0.0: never
        loss_chunk=0,  # tokens per chunk of the loss; 0: no chunks
        log_every=10,  # steps
        evaluate_every=100,  # steps
        save_every='evaluation',  # evaluation (with every one), steps(n), auto(hours between failures)
        local_checkpoint_dir='',  # a folder on each machine's disk or memory for local checkpoints; '': none
        save_local_every='auto(hours=4.0)',  # as save_every, for local checkpoints
        evaluation_batches=0,  # batches spread over the validation split; 0: all of it
        keep_checkpoints=2,  # number of last checkpoints to keep, besides the best
        profile=0,  # steps to profile, from the third; 0: none
      ),
      decoding=dict(  # tfm generate and tfm evaluate; the first four are for encoder-decoders
        beams=1,  # beam size; 1: greedy
        length_penalty='gnmt(0.6)',  # gnmt(alpha), power(alpha)
        stopping='proven',  # proven: none can become better; likely: none is better now; first: enough
        max_extra_tokens=50,  # how many tokens a target may be longer than its source
        average_checkpoints=1,  # number of last checkpoints whose parameters are averaged on loading
      ),
      mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1, expert=1, stage=1),  # -1: all remaining devices
      slices=dict(  # groups of devices with a slow network between them
        count=-1,  # -1: as reported by the devices (TPUs); others form one slice
        axis='data',  # the only mesh axis across slices: data, stage
      ),
      pipeline=dict(  # for a mesh with stages
        microbatches=0,  # parts of a batch; 0: about four per stage
        repeats=1,  # rounds of each microbatch through smaller groups of layers (interleaved schedule)
      ),
      rules=dict(  # logical axis → mesh axes, '' for none
        batch='data fsdp expert',
        length='sequence',
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
    ),
    sort_keys=False,
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


def parts(config: ConfigDict) -> dict[str, ConfigDict]:
  """Path → section, for every section that describes attention or whole blocks; the model's comes first."""
  model = config.model
  sections = {'model': model, 'model.encoder': model.encoder, 'model.cross': model.cross}
  sections |= {f'model.blocks.{name}': block for name, block in model.blocks.items()}
  return {path: section for path, section in sections.items() if section}


def leaves(config: Mapping, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """(dotted path, value) of every field."""
  for name, value in config.items():
    if isinstance(value, (Mapping, ConfigDict)) and len(value):
      yield from leaves(value, f'{prefix}{name}.')
    elif not isinstance(value, (Mapping, ConfigDict)):
      yield f'{prefix}{name}', value
