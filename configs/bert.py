"""BERT (Devlin et al. 2019): masked language modelling and next-sentence prediction.

Question:  what does an encoder learn when each token attends in both directions?
Source:    Devlin et al. 2019, §3 and App. A.2, https://arxiv.org/abs/1810.04805, and the released code,
           https://github.com/google-research/bert.
Command:   tfm train --config=configs/bert.py --workdir=runs/bert               (base; large likewise)
           tfm train --config=configs/bert.py:tiny --workdir=runs/bert-tiny     (laptop size, on stdlib)
           tfm generate --workdir=runs/bert-tiny --prompt='import <mask>'
Cost:      not measured. Published: four days on 16 TPU chips (base) or 64 (large), for 1,000,000 steps of
           256 rows of 512 tokens. 90 % of the steps use 128 tokens: --config.data.length=128.
Expected:  not measured; tiny was never trained to the end. Published: 110 M parameters (base), 340 M (large).
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument


SIZES = {
  'base': dict(layers=12, width=768, heads=12),
  'large': dict(layers=24, width=1024, heads=16),
  'tiny': dict(layers=4, width=128, heads=4),
}


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg, SIZES)
  config = ConfigDict()
  config.objective = 'masked_lm(next_sentence=True)'
  # 30,522 tokens with <mask>. The text is English Wikipedia; the BookCorpus of the paper is left out.
  config.data = dict(
    source="tfds('wiki40b/en')", tokenizer='sentencepiece(30521)', length=512, packing='sentence_pairs'
  )
  config.model = SIZES[arg or 'base'] | dict(
    architecture='encoder',
    position='learned',
    norm='layernorm(1e-12)',
    norm_placement='post',
    embedding_norm=True,
    bias=True,
    feed_forward='gelu',
    token_types=2,
    pooling='first',
    pooled_transform='tanh',
    output_transform='gelu',
    output_bias=True,
    vocab_multiple=1,
    depth_scaled=False,
    initializer='truncated_normal(0.02)',
    embedding_initializer='truncated_normal(0.02)',
    dropout=dict(embedding=0.1, attention=0.1, residual=0.1),
  )
  config.optimizer = dict(
    name='adamw(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)',
    learning_rate=1e-4,
    schedule='linear',
    warmup=10_000,
    clip=1.0,
    no_decay='bias|scale',
  )
  config.training = dict(steps=1_000_000, batch_size=256, evaluate_every=10_000, evaluation_batches=100)
  if arg == 'tiny':
    config.data.update(source='stdlib', tokenizer='sentencepiece(8000)', length=128)
    config.optimizer.update(learning_rate=1e-3, warmup=200)
    config.training.update(steps=2000, batch_size=32, evaluate_every=200, evaluation_batches=20)
  return config
