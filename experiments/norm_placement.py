"""Norm placement, depth and warm-up.

Question:  Where should the norm be, how deep can the stack be, and when does post-norm need warm-up?
Source:    Vaswani et al. 2017 (post); Xiong et al. 2020 (pre, and why post needs warm-up); Ding et al. 2021,
           §2.2 (sandwich); Wang et al. 2022 (DeepNorm: post-norm with a larger stream and smaller weights).
Command:   tfm ablate experiments/norm_placement.py --workdir=runs/norm_placement
           tfm ablate experiments/norm_placement.py:deepnorm --workdir=runs/deepnorm   (DeepNorm in 12 layers)
Cost:      1:08 h on 2 CPU cores (x86_64), with interruptions (--jobs=2); deepnorm: 0:45 h.
Expected:  post-norm in 12 layers collapses without warm-up from a rate of 0.004 on, and learns there with
           warm-up; pre-norm learns at every rate; sandwich norms are worse by 0.15 to 0.40 nats
           (docs/results/studies/norm_placement.md). deepnorm: with warm-up post-norm is ahead of pre-norm by
           0.115 nats and of DeepNorm by 0.217; at once DeepNorm bears a higher rate, in four of five seeds.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


PRE, POST = ({'model.norm_placement': placement} for placement in ('pre', 'post'))
DEEPNORM = POST | {'model.residual': 'deepnorm'}
WARMUPS = {'warm-up': {'optimizer.warmup': 100}, 'at once': {'optimizer.warmup': 1}}


def get_study(arg: str = '') -> Study:
  require_argument(arg, ['deepnorm'])
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  # Xavier's larger weights make all tokens alike below 12 post-norms, before the first step.
  config.model = dict(width=64, heads=4)
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine')
  config.training = dict(steps=250, batch_size=8, evaluate_every=50, evaluation_batches=48)
  if arg == 'deepnorm':
    return compare_deepnorm(config)
  arms = product(
    {'pre': PRE, 'post': POST, 'sandwich': {'model.norm_placement': 'sandwich'}},
    {f'{layers} layers': {'model.layers': layers} for layers in (2, 12)},
    WARMUPS,
  )
  return Study(
    question='Where should the norm be, how deep can the stack be, and when does post-norm need warm-up?',
    literature=(
      'Xiong et al. 2020: the gradients of post-norm are large near its output when training begins, so '
      'that it needs warm-up, and pre-norm does not. Ding et al. 2021 find sandwich norms to keep large '
      'models from diverging.'
    ),
    config=config,
    arms=arms,
    base='pre + 2 layers + warm-up',
    against=compare_within(arms, 'pre'),
    seeds=5,
    learning_rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )


def compare_deepnorm(config: ConfigDict) -> Study:
  """DeepNorm beside post-norm and pre-norm in 12 layers."""
  config.model.layers = 12
  arms = product({'post': POST, 'deepnorm': DEEPNORM, 'pre': PRE}, WARMUPS)
  return Study(
    question='Does DeepNorm train a post-norm of 12 layers stably, with warm-up and without?',
    literature=(
      'Wang et al. 2022: DeepNorm has the performance of post-norm and the stability of pre-norm, as its '
      'updates are bounded whatever the depth; post-norm of 18 layers each way diverges in translation.'
    ),
    config=config,
    arms=arms,
    base='post + warm-up',
    against=compare_within(arms, 'post'),
    seeds=5,
    # Near the rate at which post-norm collapses one run may learn where others do not.
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3),
    runs_per_rate=3,
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )
