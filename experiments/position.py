"""Position schemes at the training length and beyond.

Question:  Which position scheme learns best, and which generalizes beyond the training length?
Source:    Vaswani et al. 2017, §3.5 (sinusoidal, learned); Shaw et al. 2018; Raffel et al. 2020 (t5); Su et
           al. 2021 (rope); Press et al. 2022 (alibi); Chi et al. 2022 (kerple); Li et al. 2024 (fire);
           Kazemnejad et al. 2023 (none).
Command:   tfm ablate experiments/position.py --workdir=runs/position
           tfm ablate experiments/position.py:demo --workdir=runs/demo
Cost:      1:43 h on 2 CPU cores (x86_64) with --jobs=2, beside other work; demo: 4:32 minutes on two
           AMD EPYC cores without AVX-512, installation apart (half the steps took 4:07 there, and 2:10 on an
           Intel).
Expected:  rope is best at the training length, ahead of fire by 0.043 nats, kerple by 0.075, t5 by 0.145 and
           alibi by 0.191; at eight times the length it is worse than no positions, kerple and alibi hold, and
           yarn takes it from 2.67 to 1.77. demo: rope is best; alibi is worse by 0.101 nats, sinusoidal by
           0.270, on the library of Python 3.11.7; on those of Debian's 3.11.2, 3.12.1 and 3.13.0 by 0.107,
           0.096 and 0.083, sinusoidal by 0.257, 0.274 and 0.242, all with p < 0.001.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


# Tables that begin small beside embeddings of unit size would be absent for the first hundreds of steps.
SCHEMES = {
  name: {'model.position': name} for name in ('rope', 'none', 'sinusoidal', 'alibi', 'kerple', 'fire')
} | {'learned': {'model.position': 'learned(stddev=0.5)'}, 't5': {'model.position': 't5(stddev=0.5)'}}
DEMO = 'rope', 'sinusoidal', 'alibi'
LENGTHS = '(64, 128, 256, 512, 1024), targets=32_768'


def get_study(arg: str = '') -> Study:
  require_argument(arg, ['demo'])
  demo = arg == 'demo'
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  # Embeddings of about unit size, as in Vaswani et al. 2017, §3.4: sines of size one would dominate smaller
  # ones.
  config.model = dict(
    layers=2,
    width=128,
    heads=4,
    initializer='lecun_normal',
    scale_embeddings=True,
    embedding_initializer='normal(0.1)',
  )
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=1000, batch_size=8, evaluate_every=200, evaluation_batches=48)
  if demo:
    config.model.update(width=64)
    config.training.update(steps=160, evaluate_every=40, evaluation_batches=12)
  return Study(
    question='Which position scheme learns best, and which generalizes beyond the training length?',
    literature=(
      'Textbooks rank generalisation to greater lengths as fair (sinusoidal), poor (learned), medium '
      '(relative), strong (rope) and strong (alibi). Press et al. 2022 find alibi better than t5, rope '
      'and sinusoidal beyond the length of training; Kazemnejad et al. 2023 find decoders without any '
      'best on small reasoning tasks. Peng et al. 2023 (yarn) find that scaled frequencies repair rope '
      'beyond the length of training.'
    ),
    config=config,
    base='rope',
    arms={name: SCHEMES[name] for name in (DEMO if demo else SCHEMES)},
    seeds=4 if demo else 5,
    learning_rates=(5e-3, 1.25e-2, 3e-2) if demo else (2e-3, 4e-3, 8e-3),
    rates_beyond=0 if demo else 1,
    equal_within=0.02,
    measures=('lengths((128, 256, 512), targets=8_192)',)
    if demo
    else (
      f'lengths({LENGTHS})',
      f'lengths({LENGTHS}, scaling="yarn(factor=8, original=128)")',
      'parts',
      'initialization',
    ),
  )
