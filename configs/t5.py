"""T5, versions 1.0 and 1.1, in every size.

Question:  what does an encoder-decoder learn from text alone if every task maps text to text?
Source:    Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text
           Transformer, §2.1, §3.1 and §3.7. For 1.1, the notes and configs of the released checkpoints: gated
           feed-forward layers, untied output, no dropout before fine-tuning. Difference: no dropout within
           feed-forward layers and after the last norm.
Command:   tfm train --config=configs/t5.py --workdir=runs/t5-base       (1.0; small, large, 3b, 11b likewise)
           tfm train --config=configs/t5.py:1.1-base --workdir=runs/t5-1.1-base (1.1-small … 1.1-xxl likewise)
Cost:      not measured.
Expected:  not measured. Published: Table 14 of the paper, after fine-tuning.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Size(NamedTuple):
  """Sizes of the encoder and of the decoder alike; heads have 64 channels by default."""

  layers: int
  width: int
  heads: int
  feed_forward_width: int
  head_width: int = 64


SIZES = {
  'small': Size(6, 512, 8, 2048),
  'base': Size(12, 768, 12, 3072),
  'large': Size(24, 1024, 16, 4096),
  '3b': Size(24, 1024, 32, 16_384, 128),
  '11b': Size(24, 1024, 128, 65_536, 128),
  '1.1-small': Size(8, 512, 6, 1024),
  '1.1-base': Size(12, 768, 12, 2048),
  '1.1-large': Size(24, 1024, 16, 2816),
  '1.1-xl': Size(24, 2048, 32, 5120),
  '1.1-xxl': Size(24, 4096, 64, 10_240),
}


def get_config(arg: str = '') -> ConfigDict:
  name = arg or 'base'
  require_argument(arg, SIZES)
  size, first = SIZES[name], not name.startswith('1.1')
  large = size.head_width == 128 or size.width > 1024
  config = ConfigDict()
  config.objective = 'span_corruption'
  # 32,000 pieces and 100 sentinels; the embedding table is padded to 32,128 rows.
  config.data = dict(source="tfds('c4/en')", tokenizer="sentencepiece(32000, kind='unigram')", length=512)
  # Scores are not scaled by 1/√head_width; the query projection is initialized smaller instead.
  config.model = dict(
    architecture='encoder_decoder',
    **size._asdict(),
    mixer=f'softmax(query_init_scale={size.head_width**-0.5:.4g})',
    score='dot(scale=1.0)',
    position='t5',
    encoder=dict(position='t5(bidirectional=True)'),
    norm='rmsnorm(1e-6)',
    initializer='lecun_normal',
    depth_scaled=False,
    dtype='bfloat16',
    remat='full' if large else 'none',
  )
  rate = 0.1 if first else 0.0
  config.model.dropout = dict(embedding=rate, attention=rate, residual=rate)
  if first:
    # T5 initializes its table from N(0, 1) and scales the logits by 1/√D. Here the table is 1/√D times as
    # large and the embeddings are scaled by √D: the same model. The training steps are the same too, because
    # Adafactor's updates are relative to a parameter's scale.
    config.model.update(
      feed_forward='relu',
      tie_embeddings=True,
      scale_embeddings=True,
      embedding_initializer=f'normal({size.width**-0.5:.4g})',
    )
  else:
    config.model.update(feed_forward='geglu_tanh', tie_embeddings=False, embedding_initializer='normal(1.0)')
  config.optimizer = dict(
    name='adafactor', learning_rate=0.01, schedule='rsqrt(flat=10_000)', warmup=0, clip=0.0
  )
  config.training = dict(
    steps=1_000_000, batch_size=2048, loss_chunk=65_536, evaluate_every=1000, evaluation_batches=20
  )
  if large:
    config.mesh = dict(data=1, fsdp=-1)
  return config
