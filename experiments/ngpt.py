"""Weights and tokens on a sphere: nGPT beside the block of LLaMA.

Question:  Does a model whose tokens and weights have length 1 learn faster than LLaMA's block?
Source:    Loshchilov et al. 2024 (nGPT, figures 1 and 2); Touvron et al. 2023 (LLaMA).
Command:   tfm ablate experiments/ngpt.py --workdir=runs/ngpt
Cost:      0:30 h on 2 CPU cores (x86_64) with --jobs 2 and four of the rates, beside other work.
Expected:  LLaMA 1.525; a unit stream and norms of queries and keys are undecided against it (+0.010, +0.001);
           nGPT is worse by 0.073 to 0.075, at its best rate, 0.014, and after 500 steps.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study


STREAM = {
  'model.residual': 'spherical',
  'model.norm_placement': 'res_post',
  'model.mixer': 'softmax(qk_norm="rmsnorm")',
}
WEIGHTS = {
  'model.parametrization': 'unit_weights',
  'optimizer.name': 'adamw(weight_decay=0.0)',
  'optimizer.warmup': 0,
}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(
    layers=4,
    width=96,
    heads=4,
    norm='rmsnorm',
    feed_forward='swiglu',
    tie_embeddings=False,
    initializer='lecun_normal',
  )
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=50)
  config.training = dict(steps=500, batch_size=8, evaluate_every=100, evaluation_batches=48)
  return Study(
    question="Does a model whose tokens and weights have length 1 learn faster than LLaMA's block?",
    literature=(
      'Loshchilov et al. 2024: nGPT of 0.5 and 1 billion parameters needs 4 to 20 times fewer steps than a '
      "Transformer of LLaMA's kind for the same loss, the more the longer the context, and no warm-up and no "
      'weight decay.'
    ),
    config=config,
    base='LLaMA',
    arms={
      'LLaMA': {},
      'with norms of queries and keys': {'model.mixer': STREAM['model.mixer']},
      'unit stream': STREAM,
      'nGPT': STREAM | WEIGHTS,
    },
    seeds=4,
    match='parameters',
    learning_rates=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    equal_within=0.02,
    measures=('initialization',),
  )
