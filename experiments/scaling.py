"""The block of LLaMA against that of GPT-2 over compute.

Question:  How much compute does LLaMA's block save against GPT-2's, and does that grow with scale?
Source:    Radford et al. 2019 (GPT-2); Touvron et al. 2023 (LLaMA, §2.2: rope, RMSNorm, SwiGLU); Hoffmann et
           al. 2022, §3.3 (the fit); Besiroglu et al. 2024 (the fit, done again).
Command:   tfm ablate experiments/scaling.py --workdir=runs/scaling
Cost:      0:49 h on 2 CPU cores (x86_64), with --jobs=2.
Expected:  LLaMA's block has the lower loss at every size, by 0.243 to 0.462 nats (p < 0.001); a FLOP of it is
           worth 4.5 of GPT-2's at the smallest size, and 6.3 at the third, by seeds; by the fitted curves,
           of which GPT-2's is no power law here, the largest is undecided.
"""

from ml_collections import ConfigDict

from tfm.config.library import require_argument
from tfm.studies.study import Study, compare_within, product


ARMS = {
  'GPT-2': {'model.position': 'learned(stddev=0.1)', 'model.norm': 'layernorm', 'model.feed_forward': 'gelu'},
  'LLaMA': {'model.position': 'rope', 'model.norm': 'rmsnorm', 'model.feed_forward': 'swiglu'},
}
# Twenty tokens, of 1,024 a step, for each parameter apart from embeddings (Hoffmann et al. 2022).
SIZES = {
  f'width {width}': {'model.width': width, 'training.steps': steps}
  for width, steps in ((24, 270), (32, 480), (40, 750), (56, 1470), (80, 3000))
}


def get_study(arg: str = '') -> Study:
  require_argument(arg)
  config = ConfigDict()
  config.data = dict(source='stdlib', tokenizer='bytes', length=128)
  config.model = dict(
    layers=2, heads=4, initializer='lecun_normal', scale_embeddings=True, embedding_initializer='normal(0.1)'
  )
  config.optimizer = dict(learning_rate=4e-3, schedule='cosine', warmup=50)
  config.training = dict(batch_size=8, evaluate_every=100, evaluation_batches=48)
  arms = product(ARMS, SIZES)
  smallest, *_ = SIZES
  return Study(
    question="How much compute does LLaMA's block save against GPT-2's, and does that grow with scale?",
    literature=(
      'Touvron et al. 2023 took each part from papers that found it better at one size; Kaplan et al. 2020 '
      'find that details of the shape move curves of loss against compute and do not bend them. So: a '
      'multiplier above one that does not depend on compute, and curves that do not cross.'
    ),
    config=config,
    arms=arms,
    base=f'GPT-2 + {smallest}',
    against=compare_within(arms, 'GPT-2'),
    scales=tuple(SIZES),
    seeds=5,
    match='parameters',
    learning_rates=(2e-3, 4e-3, 8e-3, 1.6e-2),
    rates_beyond=2,
    rungs=(0.25,),
    measures=('initialization',),
  )
