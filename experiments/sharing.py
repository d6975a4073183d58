"""Shared keys and values: grouped, multi-query and latent attention.

Question:  What does it cost to share keys and values among heads, and what does it save?
Source:    Vaswani et al. 2017 (multi-head); Shazeer 2019 (multi-query, with a wider feed-forward layer for
           equal parameters); Ainslie et al. 2023 (grouped); DeepSeek-AI 2024 (latent).
Command:   tfm ablate experiments/sharing.py --workdir=runs/sharing
Cost:      0:46 h on 2 CPU cores (x86_64), with --jobs=2, beside tests.
Expected:  latent attention at the published widths loses 0.041 nats, 0.020 with twice the rotated channels,
           0.051 with the cache of one key/value head; two or one key/value heads lose 0.004 and 0.009, which
           is undecided. The caches are a quarter, a seventh.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(
    layers=2,
    width=128,
    heads=8,
    initializer='lecun_normal',
    scale_embeddings=True,
    embedding_initializer='normal(0.1)',
  )
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=800, batch_size=8, evaluate_every=200, evaluation_batches=48)
  return Study(
    question='What does it cost to share keys and values among heads, and what does it save?',
    literature=(
      'Shazeer 2019 loses a little quality by one key/value head and decodes much faster; Ainslie et al. '
      '2023 find grouped heads close to multi-head; DeepSeek-AI 2024 finds latent attention better than '
      'multi-head with a smaller cache.'
    ),
    config=config,
    base='multi-head',
    match='parameters',
    # A head has 16 channels: 256 cached numbers per token and layer, then 64 and 32. Latent attention at the
    # published widths, a rank of four heads and half a head that is rotated, caches 72; with a whole head
    # rotated 80; with as many as one head has 32.
    arms={
      'multi-head': {},
      'grouped (2)': {'model.kv_heads': 2},
      'multi-query': {'model.kv_heads': 1},
      'latent (64 + 8)': {'model.mixer': 'latent(rank=64, rope_width=8)'},
      'latent (64 + 16)': {'model.mixer': 'latent(rank=64, rope_width=16)'},
      'latent (24 + 8)': {'model.mixer': 'latent(rank=24, rope_width=8)'},
    },
    seeds=6,
    learning_rates=(2e-3, 4e-3, 8e-3),
    rates_beyond=1,
    equal_within=0.02,
    measures=('decoding(rows=8, context=1024)', 'parts', 'initialization'),
  )
