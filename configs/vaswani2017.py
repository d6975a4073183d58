"""Attention Is All You Need (Vaswani et al. 2017): English to German, and every row of its Table 3.

Question:  how much do heads, key width, depth, width, dropout and positions of the first Transformer matter?
Source:    Vaswani et al. 2017, §5 (training), §6 and Table 3 (variations), https://arxiv.org/abs/1706.03762,
           on WMT 2014.
Command:   tfm train --config=configs/vaswani2017.py --workdir=runs/base
           tfm train --config=configs/vaswani2017.py:big --workdir=runs/big
           tfm train --config=configs/vaswani2017.py:a1 --workdir=runs/a1       (a1 … e1, see ROWS)
           tfm evaluate --workdir=runs/base --split=test \\
             --metric='tokenized_bleu("de", split_compounds=True)' --metric=bleu
Cost:      not measured. Published: 12 hours (base) and 3.5 days (big) on eight GPUs of 2017, for 100,000 and
           300,000 steps of about 25,000 source and 25,000 target tokens.
Expected:  not measured. Published: 25.8 (base) and 26.4 (big) BLEU on newstest2013; all rows in ROWS.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from tfm.config.library import require_argument


class Row(NamedTuple):
  """A row of Table 3: changes from base, and the paper's figures (millions of parameters where published)."""

  changes: dict
  million: float | None
  perplexity: float | None
  bleu: float | None


def heads(count: int, width: int) -> dict:
  return dict(heads=count, head_width=width)


# Values keep 64 channels where keys are narrower.
NARROW_KEYS = dict(mixer='softmax(value_width=64)')
ROWS = {
  'base': Row({}, 65, 4.92, 25.8),
  'a1': Row(heads(1, 512), None, 5.29, 24.9),
  'a2': Row(heads(4, 128), None, 5.00, 25.5),
  'a3': Row(heads(16, 32), None, 4.91, 25.8),
  'a4': Row(heads(32, 16), None, 5.01, 25.4),
  'b1': Row(heads(8, 16) | NARROW_KEYS, 58, 5.16, 25.1),
  'b2': Row(heads(8, 32) | NARROW_KEYS, 60, 5.01, 25.4),
  'c1': Row(dict(layers=2), 36, 6.11, 23.7),
  'c2': Row(dict(layers=4), 50, 5.19, 25.3),
  'c3': Row(dict(layers=8), 80, 4.88, 25.5),
  'c4': Row(dict(width=256), 28, 5.75, 24.5),
  'c5': Row(dict(width=1024), 168, 4.66, 26.0),
  'c6': Row(dict(feed_forward_width=1024), 53, 5.12, 25.4),
  'c7': Row(dict(feed_forward_width=4096), 90, 4.75, 26.2),
  'd1': Row(dict(dropout=0.0), None, 5.77, 24.6),
  'd2': Row(dict(dropout=0.2), None, 4.95, 25.5),
  'd3': Row(dict(smoothing=0.0), None, 4.67, 25.3),
  'd4': Row(dict(smoothing=0.2), None, 5.47, 25.7),
  'e1': Row(dict(position='learned'), None, 4.92, 25.7),
  'big': Row(
    dict(width=1024, feed_forward_width=4096, heads=16, dropout=0.3, steps=300_000, average=20),
    213,
    4.33,
    26.4,
  ),
}


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, ROWS)
  model = dict(
    architecture='encoder_decoder',
    layers=6,
    width=512,
    heads=8,
    feed_forward='relu',
    feed_forward_width=2048,
    position='sinusoidal',
    norm_placement='post',
    bias=True,
    scale_embeddings=True,
    depth_scaled=False,
    initializer='xavier_uniform',
  )
  changes = dict(ROWS[arg or 'base'].changes)
  rate, smoothing = changes.pop('dropout', 0.1), changes.pop('smoothing', 0.1)
  steps, average = changes.pop('steps', 100_000), changes.pop('average', 5)
  model |= changes
  config = ConfigDict()
  config.objective = f'seq2seq(label_smoothing={smoothing})'
  config.data = dict(
    source="tfds('wmt14_translate/de-en', 'en', 'de')",
    tokenizer='sentencepiece(37000)',
    length=256,
    packing='buckets',
  )
  # The paper gives no initial variance. With 1/D, the embeddings scaled by √D (§3.4) have variance one.
  config.model = model | dict(
    embedding_initializer=f'normal({model["width"] ** -0.5:.4g})',
    dropout=dict(embedding=rate, attention=0.0, residual=rate),
  )
  config.optimizer = dict(
    name='adam(b1=0.9, b2=0.98, eps=1e-9)', learning_rate=1.0, schedule='noam', warmup=4000, clip=0.0
  )
  # 96 × 256 tokens per side. The paper averages checkpoints ten minutes apart: 1500 steps (base), 600 (big).
  config.training = dict(
    steps=steps, batch_size=96, evaluate_every=600 if arg == 'big' else 1500, keep_checkpoints=average
  )
  config.decoding = dict(
    beams=4, length_penalty='gnmt(0.6)', max_extra_tokens=50, average_checkpoints=average
  )
  return config
