"""Norm placement, depth and warm-up.

Question:  Where should the norm be, how deep can the stack be, and when does post-norm need warm-up?
Source:    Vaswani et al. 2017 (post); Xiong et al. 2020 (pre, and why post needs warm-up); Ding et al. 2021,
           §2.2 (sandwich); Wang et al. 2022 (DeepNorm: post-norm with a larger stream and smaller weights).
Command:   tfm ablate experiments/norm_placement.py --workdir=runs/norm_placement
Cost:      1:41 h on 2 CPU cores (x86_64, AVX-512), with --jobs=2 and other work beside it.
Expected:  with warm-up post-norm is ahead of pre-norm by 0.097 nats in 12 layers, at once by 0.198, and by
           0.119 in 2 layers at once; it collapses in 12 layers from a rate of 0.008 on, at once from 0.004
           on, and pre-norm at none; sandwich norms are behind (docs/results/studies/norm_placement.md).
           At the edge of a collapse, where rates are taken now, 0.14 in 12 layers and 0.156 in 2 at once;
           there one of five seeds of post-norm in 2 layers with warm-up collapses.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


POST = {'model.norm_placement': 'post'}
PRE = {'model.norm_placement': 'pre'}
SANDWICH = {'model.norm_placement': 'sandwich'}
DEEPNORM = POST | {'model.residual': 'deepnorm'}
SHALLOW, DEEP = ({f'{layers} layers': {'model.layers': layers}} for layers in (2, 12))
WARMUPS = {'warm-up': {'optimizer.warmup': 100}, 'at once': {'optimizer.warmup': 1}}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  # Xavier's larger weights make all tokens alike below 12 post-norms, before the first step.
  config.model = dict(width=64, heads=4)
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine')
  config.training = dict(steps=600, batch_size=8, evaluate_every=120, evaluation_batches=48)
  arms = product({'post': POST, 'pre': PRE}, SHALLOW | DEEP, WARMUPS)
  arms |= product({'sandwich': SANDWICH, 'deepnorm': DEEPNORM}, DEEP, WARMUPS)
  return Study(
    question='Where should the norm be, how deep can the stack be, and when does post-norm need warm-up?',
    literature=(
      'Xiong et al. 2020: the gradients of post-norm are large near its output when training begins, so '
      'that it needs warm-up, and pre-norm does not. Wang et al. 2022: DeepNorm has the performance of '
      'post-norm and the stability of pre-norm. Ding et al. 2021: sandwich norms keep large models from '
      'diverging.'
    ),
    config=config,
    arms=arms,
    base='post + 12 layers + warm-up',
    against=compare_within(arms, 'post'),
    seeds=5,
    learning_rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    rates_beyond=1,
    # Near the rate at which a post-norm collapses one run may learn where others do not.
    runs_per_rate=3,
    equal_within=0.02,
    measures=('parts', 'initialization'),
  )
