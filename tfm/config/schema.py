"""Every field of a config, with its default.

A config file says only what it has to say: `get_config(arg) -> ConfigDict` returns the fields that
differ from `default_config()`. The loader fills in the rest, so `--config.any.field=value` reaches every one.
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

# Those that the cross-attention of an encoder-decoder's blocks has too.
CROSS_FIELDS = ('heads', 'kv_heads', 'head_width', 'mixer', 'position', 'mask', 'score', 'kernel', 'bias')

# Sections in which None is "as the model's".
INHERITING = ('model.blocks.', 'model.encoder.', 'model.cross.')


def default_config() -> ConfigDict:
  """Every field with its default. None means "worked out from the others", in `resolve`."""
  return ConfigDict(
    dict(
      seed=0,
      init_from='',  # the --workdir of a run, trained or imported, whose last parameters training starts from
      data=dict(
        source='stdlib',  # tfm/data/sources: stdlib, text('*.txt'), tfds('name'), parallel(src, tgt), digits, …
        tokenizer='bytes',  # tfm/data/tokenizers: bytes, char, words, sentencepiece(8000)
        source_tokenizer=placeholder(str),  # of the source of a pair; None: the tokenizer, trained on both
        length=256,  # tokens of one sequence; of an image, its patches and the class tokens
        packing='concat',  # tfm/data/packing: concat, first_fit; pairs: buckets; classes: each; answers: answered
        reader_threads=2,  # reading threads of the training pipeline
      ),
      model=dict(
        architecture='decoder',  # decoder, encoder_decoder, encoder
        layers=6,  # of an encoder-decoder: its decoder's, as all that follows
        width=384,  # D
        heads=6,  # H
        kv_heads=placeholder(int),  # K; None: heads (multi-head); 1: multi-query; between: grouped
        head_width=placeholder(int),  # C; None: width / heads
        mixer='softmax',  # tfm/mixers
        position='rope',  # tfm/positions
        mask=placeholder(str),  # tfm/masks, combined with & | ~; None: causal, of an encoder full
        score='dot',  # tfm/scores
        kernel='auto',  # tfm/kernels
        feed_forward='gelu',  # relu, gelu, geglu, swiglu, … of tfm/layers/mlp.py, mixture_of_experts(…), none
        feed_forward_width=placeholder(
          int
        ),  # F, of one expert; None: 4 D, 8/3 D to the next 64 where gated, 0 without layer
        norm='layernorm',  # layernorm(epsilon, bias=…, scale=…), rmsnorm(epsilon)
        norm_placement='pre',  # pre, post, sandwich
        residual='sequential',  # sequential, parallel, parallel_one_norm
        bias=False,  # in projections, and in layer norms that do not say themselves
        dropout=dict(embedding=0.0, attention=0.0, residual=0.0),
        tie_embeddings=True,  # the output reads the embedding table
        embedding_width=placeholder(int),  # of the table, lifted to D by a projection; None: D, without one
        scale_embeddings=False,  # the embedding is √D times the table
        embedding_norm=False,  # a norm after the embedding
        output_transform='',  # activation of a layer between the trunk and the vocabulary; '': none
        output_bias=False,  # of each token of the vocabulary
        output_soft_cap=0.0,  # logits of the vocabulary become cap · tanh(logits / cap); 0: they do not
        patch=0,  # of an encoder of images: pixels a side of what is one token; 0: of texts
        token_types=0,  # of an encoder: embeddings for first and second text; 0: none
        class_tokens=placeholder(
          int
        ),  # of images: learned tokens before the patches; None: as many as the pooling reads
        pooling='first',  # of an encoder: what a class is told from: first, mean; first_two: the mean of two heads
        pooled_transform='',  # and the activation of a layer before the class; '': none
        vocab_multiple=128,  # rows of the embedding table are rounded up to a multiple
        initializer='normal(0.02)',  # normal, truncated_normal, xavier_uniform, lecun_normal
        embedding_initializer='normal(0.02)',
        depth_scaled=True,  # projections into the residual stream start 1/√(2 layers) as large
        dtype='float32',  # of the compute: float32, bfloat16, float16; parameters are float32
        scan=True,  # one compiled block, looped
        remat='none',  # none, full, dots, dots_with_no_batch_dims
        pattern=(),  # names in `blocks`, repeated over the layers; (): all alike
        blocks=dict(),  # name → the block fields that differ from the model's
        encoder=dict(),  # of an encoder-decoder: layers, pattern and block fields that differ
        cross=dict(),  # and the fields of the cross-attention that differ
      ),
      objective='causal_lm',  # tfm/objectives: causal_lm(label_smoothing, z_loss), seq2seq, …
      lora=dict(  # adapters, which alone are trained, with heads that are new; 0: none
        rank=0,
        alpha=16.0,  # their scale, times the rank
        targets='mixer/(q|v)/',  # projections (regex on the path) that have one
      ),
      optimizer=dict(
        name='adamw',  # adam, adamw(b1, b2, eps, weight_decay), adafactor, lion, sgd(momentum)
        learning_rate=1e-3,  # the peak; with noam a factor on d^-0.5
        schedule='cosine',  # noam, rsqrt, cosine(floor), linear(floor), wsd(decay), constant
        warmup=100,  # steps
        clip=1.0,  # global norm of the gradient; 0: no clipping
        no_decay=r'bias|scale|table|sinks|A_log|/D$',  # parameters (regex on the path) without weight decay
        frozen='',  # parameters (regex on the path) that stay as they are; '': none
        layer_decay=1.0,  # factor on the learning rate from each layer to the one below it; 1.0: all learn alike
      ),
      training=dict(
        steps=1000,
        batch_size=32,  # sequences, over all devices and microbatches
        gradient_accumulation=1,  # microbatches of one step
        recurrence_length=0,  # tokens of a piece of a row; earlier ones are remembered without gradient
        # (Transformer-XL, truncated backpropagation); 0: the row at once
        skip_spikes=0.0,  # times its running mean above which a gradient's norm makes its step be skipped; 0.0: none is
        loss_chunk=0,  # tokens whose logits exist at once; 0: all of a microbatch
        log_every=10,  # steps
        evaluate_every=100,  # steps
        save_every='evaluation',  # a checkpoint with every evaluation; steps(n); auto(hours): as often as loses least time
        local_checkpoint_dir='',  # a folder on a disk, or in the memory, of each machine, for checkpoints between those; '': none
        save_local_every='auto(hours=4.0)',  # a checkpoint there; as save_every, by failures that leave it there
        evaluation_batches=0,  # spread over the validation split; 0: all of it
        keep_checkpoints=2,  # last checkpoints kept, besides the best
        profile=0,  # steps to profile, from the third; 0: none
      ),
      decoding=dict(  # in tfm generate and tfm evaluate; the first four of an encoder-decoder
        beams=1,  # hypotheses kept side by side; 1: greedy
        length_penalty='gnmt(0.6)',  # of a hypothesis's length: gnmt(alpha), power(alpha)
        stopping='proven',  # when none better can come; 'likely': none would now; 'first': `beams` have ended
        max_extra_tokens=50,  # tokens that a target may be longer than its source, as far as there are positions
        average_checkpoints=1,  # checkpoints, the last ones, whose parameters are averaged when a run is read
      ),
      mesh=dict(data=-1, fsdp=1, tensor=1, sequence=1, expert=1, stage=1),  # -1: the devices that are left
      slices=dict(  # groups of devices with a slow network between them
        count=-1,  # -1: as many as the devices say, as a TPU's do; others are one
        axis='data',  # all that this network carries: data, stage
      ),
      pipeline=dict(  # of a mesh with stages
        microbatches=0,  # of a batch, one after another; 0: about four for each stage
        repeats=1,  # rounds that each makes, through thinner groups of layers (circular, interleaved)
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
  """Fields that exist for the command line; None is "as the model's"."""
  default = default_config().model
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


def leaves(config: Mapping, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """(dotted path, value) of every field."""
  for name, value in config.items():
    if isinstance(value, (Mapping, ConfigDict)) and len(value):
      yield from leaves(value, f'{prefix}{name}.')
    elif not isinstance(value, (Mapping, ConfigDict)):
      yield f'{prefix}{name}', value
