"""Norm placement, depth and warm-up.

Question:  Where should the norm be, how deep can the stack be, and when does post-norm need warm-up?
Source:    Vaswani et al. 2017 (post); Xiong et al. 2020 (pre, and why post needs warm-up); Ding et al. 2021,
           §2.2 (sandwich); Wang et al. 2022 (DeepNorm: post-norm with a larger stream and smaller weights).
Command:   tfm ablate experiments/norm_placement.py --workdir=runs/norm_placement
Cost:      1:08 h on 2 CPU cores (x86_64), with interruptions (--jobs=2).
Expected:  post-norm in 12 layers collapses without warm-up from a rate of 0.004 on, and learns there with
           warm-up; pre-norm learns at every rate; sandwich norms are worse by 0.15 to 0.40 nats
           (docs/results/studies/norm_placement.md). DeepNorm's arms: not measured.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


PLACEMENTS = {
  'pre': {'model.norm_placement': 'pre'},
  'post': {'model.norm_placement': 'post'},
  'sandwich': {'model.norm_placement': 'sandwich'},
  'deepnorm': {'model.norm_placement': 'post', 'model.residual': 'deepnorm'},
}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=64)
  # Xavier's larger weights make all tokens alike below 12 post-norms, before the first step.
  config.model = dict(width=64, heads=4)
  config.optimizer = dict(learning_rate=3e-3, schedule='cosine')
  config.training = dict(steps=250, batch_size=8, evaluate_every=50, evaluation_batches=48)
  arms = product(
    PLACEMENTS,
    {f'{layers} layers': {'model.layers': layers} for layers in (2, 12)},
    {'warm-up': {'optimizer.warmup': 100}, 'at once': {'optimizer.warmup': 1}},
  )
  return Study(
    question='Where should the norm be, how deep can the stack be, and when does post-norm need warm-up?',
    literature=(
      'Xiong et al. 2020: the gradients of post-norm are large near its output when training begins, so '
      'that it needs warm-up, and pre-norm does not. Ding et al. 2021 find sandwich norms to keep large '
      'models from diverging. Wang et al. 2022: DeepNorm trains post-norm stably at any depth, with the '
      'performance of post-norm.'
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
