"""A training step that stores everything, and one without a policy of rematerialization, in this process.

  python -m tfm.benchmark.remat mamba2     → {"everything": {"ms": …, "mib": …}, "none": …}

`tfm benchmark remat` prints a table of all models.
"""

import json
import sys

from tfm.benchmark.training_step import prepare, train_repeatedly
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.evaluation.cost import time_interleaved


ROUNDS = 8
POLICIES = 'everything', 'none'
GPT2 = dict(layers=6, width=384, heads=6, position='learned', bias=True)
SMALL = dict(layers=4, width=256, heads=4)
# name → fields of the model, rows of 256 tokens, vocabulary.
MODELS = {
  'gpt2': (GPT2 | dict(feed_forward='gelu_tanh'), 12, 8192),
  'swiglu': (GPT2 | dict(feed_forward='swiglu'), 12, 8192),
  'mamba': (dict(layers=3, width=192, heads=3, mixer='mamba', position='none'), 8, 512),
  'mamba2': (SMALL | dict(mixer='mamba2', position='none'), 8, 512),
  'gated_delta': (SMALL | dict(mixer='gated_delta', position='none'), 8, 512),
  'experts': (SMALL | dict(feed_forward='mixture_of_experts(experts=4)'), 8, 512),
}


def main(name: str, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
  """The median milliseconds of a step, both in alternation, and the MiB of its temporaries, by policy."""
  model, rows, vocab = MODELS[name]
  prepared = []
  for remat in POLICIES:
    config = dict(
      data=dict(length=256), model=model | dict(remat=remat), training=dict(batch_size=rows, loss_chunk=512)
    )
    prepared.append(prepare(Experiment(resolve_config(complete(config))), vocab))
  seconds = time_interleaved([train_repeatedly(one) for one in prepared], rounds)
  return {
    remat: dict(ms=1000 * s, mib=one.compiled.memory['temp'] / 2**20)
    for remat, one, s in zip(POLICIES, prepared, seconds)
  }


if __name__ == '__main__':
  print(json.dumps(main(sys.argv[1])))
