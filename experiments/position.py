"""Which position scheme learns best, and which holds beyond the length that it was trained at?

Source:    Vaswani et al. 2017, §3.5 (sinusoidal, learned); Shaw et al. 2018; Raffel et al. 2020 (t5); Su et al. 2021 (rope);
           Press et al. 2022 (alibi); Chi et al. 2022 (kerple); Li et al. 2024 (fire); Kazemnejad et al. 2023 (none).
Command:   tfm ablate experiments/position.py --workdir=runs/position
           tfm ablate experiments/position.py:demo --workdir=runs/demo
"""

from ml_collections import ConfigDict

from tfm.ablation.study import Study

SCHEMES = 'rope', 'none', 'sinusoidal', 'learned', 't5', 'alibi', 'kerple', 'fire'


def get_study(arg: str = '') -> Study:
  if arg not in ('', 'demo'):
    raise ValueError(f"experiments/position.py takes 'demo' or nothing, not {arg!r}")
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(layers=4, width=128, heads=4, initializer='lecun_normal')
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=1000, batch_size=16, evaluate_every=250, evaluation_batches=50)
  schemes = SCHEMES
  if arg == 'demo':
    config.training.update(steps=120, batch_size=8, evaluate_every=60, evaluation_batches=20)
    config.model.update(layers=2, width=96)
    schemes = SCHEMES[:6]
  return Study(
    question='Which position scheme learns best, and which holds beyond the length that it was trained at?',
    literature='Textbooks rank length generalisation as fair (sinusoidal), poor (learned), medium (relative), strong '
               '(rope), strong (alibi); Kazemnejad et al. 2023 find that none at all generalises best in decoders.',
    config=config, base='rope', arms={name: {'model.position': name} for name in schemes},
    seeds=2 if arg == 'demo' else 3)
