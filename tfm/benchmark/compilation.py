"""How long the compilation of a training step takes, measured in this process, without a cache.

  python -m tfm.benchmark.compilation 12     → {"lowering": seconds, "compiling": seconds}

The model is that of `gpt2` with so many layers; `tfm benchmark start` compares depths.
"""

import json
import sys
import time

import jax

from tfm.analysis import lowering
from tfm.benchmark.gpt2 import SHAPE, make_config
from tfm.config.assemble import Experiment
from tfm.config.resolve import resolve_config
from tfm.parallel import mesh as meshes


ROWS = 12


def main(layers: int) -> dict[str, float]:
  """Seconds of tracing and lowering, and of the compiler."""
  config = make_config(ROWS)
  config.model.layers = layers
  request = lowering.PlanRequest.from_experiment(Experiment(resolve_config(config)), SHAPE['vocab'])
  mesh = meshes.make({}, jax.local_devices()[:1])
  start = time.perf_counter()
  step = lowering.lower_training_step(request, mesh)
  lowered = time.perf_counter()
  step.lowered.compile()
  return dict(lowering=lowered - start, compiling=time.perf_counter() - lowered)


if __name__ == '__main__':
  print(json.dumps(main(int(sys.argv[1]))))
