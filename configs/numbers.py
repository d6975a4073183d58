"""Translation without data: numbers and dates in words, English to German.

Question:  does the encoder-decoder learn to translate, and does it generalise beyond the training lengths?
Source:    ours: a small pre-norm version of the first Transformer (Vaswani et al. 2017, §3); num2words and
           Babel generate the pairs.
Command:   tfm train --config=configs/numbers.py --workdir=runs/numbers
           tfm evaluate --workdir=runs/numbers --split=validation --metric=exact
           tfm evaluate --workdir=runs/numbers --split=test --metric=exact      (longer numbers, next century)
           tfm generate --workdir=runs/numbers --prompt='two hundred and five' \\
             --prompt='Saturday, May 1, 1971'
Cost:      about 5 minutes on two CPU cores.
Expected:  99.9 % exact match on validation and 0 % on test, seed 0, 1,000 steps: the model does not
           generalise to longer numbers (docs/results/translation.md).
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument


def get_config(arg: str = '') -> ConfigDict:
  require_argument(arg)
  config = ConfigDict()
  config.objective = 'seq2seq(label_smoothing=0.1)'
  config.data = dict(source="numbers('en', 'de')", tokenizer='bytes', length=96, packing='padded')
  config.model = dict(
    architecture='encoder_decoder',
    layers=2,
    width=128,
    heads=4,
    feed_forward='relu',
    position='rope',
    bias=True,
    initializer='xavier_uniform',
    cross=dict(position='none'),
  )
  config.optimizer = dict(learning_rate=2e-3, schedule='cosine', warmup=100)
  config.training = dict(steps=1000, batch_size=32, evaluate_every=250)
  config.decoding = dict(beams=4)
  return config
