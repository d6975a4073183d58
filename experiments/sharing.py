"""Shared keys and values: grouped, multi-query and latent attention.

Question:  What does it cost to share keys and values among heads, and what does it save?
Source:    Vaswani et al. 2017 (multi-head); Shazeer 2019 (multi-query, with a wider feed-forward layer for
           equal parameters); Ainslie et al. 2023 (grouped); DeepSeek-AI 2024 (latent).
Command:   tfm ablate experiments/sharing.py --workdir=runs/sharing
Cost:      not measured in one piece; 25 min of training steps by the plan, on 2 CPU cores (x86_64).
Expected:  latent attention loses 0.10 to 0.11 nats with the cache of 2 or 1 key/value heads; what these lose
           instead of 8, about 0.03, is undecided with four seeds. The caches are a quarter, an eighth.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(layers=2, width=128, heads=8, initializer='lecun_normal')
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=500, batch_size=8, evaluate_every=100, evaluation_batches=48)
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
    # A head has 16 channels: 256 cached numbers per token and layer, then 64 and 32; latent attention too.
    arms={
      'multi-head': {},
      'grouped (2)': {'model.kv_heads': 2},
      'latent (64)': {'model.mixer': 'latent(rank=56, rope_width=8)'},
      'multi-query': {'model.kv_heads': 1},
      'latent (32)': {'model.mixer': 'latent(rank=24, rope_width=8)'},
    },
    seeds=4,
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3),
    equal_within=0.01,
    measures=('decoding(rows=8, context=1024)', 'parts', 'initialization'),
  )
