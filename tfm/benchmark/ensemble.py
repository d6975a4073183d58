"""Seconds per training step of several vmapped runs, measured in this process.

  python -m tfm.benchmark.ensemble 8     → {"seconds": …}

`tfm benchmark ensemble` alternates several numbers of runs and prints the ratio to a single run.
"""

import json
import sys

import jax

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.parallel import chip_specs


ROUNDS = 10
SHAPE = dict(layers=2, width=128, heads=4)
ROWS, LENGTH = 8, 128


def main(runs: int) -> None:
  if runs > 1:
    jax.config.update('jax_num_cpu_devices', chip_specs.cpu_core_count())  # as tfm ablate does
  config = resolve_config(
    complete(dict(data=dict(source='stdlib', length=LENGTH), model=SHAPE, training=dict(batch_size=ROWS)))
  )
  print(json.dumps(dict(seconds=estimate.measure_step(Experiment(config), runs, ROUNDS).seconds)))


if __name__ == '__main__':
  main(int(sys.argv[1]))
