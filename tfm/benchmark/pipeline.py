"""Memory per device and bubble of pipeline schedules, from XLA's memory analysis; nothing runs.

  python -m tfm.benchmark.pipeline     → a Markdown table: one row per mesh and pipeline

The devices are simulated CPU devices, as many as the mesh needs, at most eight.
"""

import math
import os

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from tfm.analysis import estimate
from tfm.config import mesh_constraints
from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.data.packing.protocol import padding_row
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states
from tfm.training.step import jitted


VOCAB = 8192
RUN = dict(
  data=dict(length=256),
  model=dict(layers=16, width=256, heads=4, remat='full'),
  mesh=dict(data=1),
  training=dict(batch_size=32, loss_chunk=1024),
)
CASES = (
  {},
  {'mesh.stage': 2},
  {'mesh.stage': 4},
  {'mesh.stage': 8},
  {'mesh.stage': 4, 'pipeline.repeats': 2},
  {'mesh.stage': 4, 'rules.vocab': 'tensor stage'},
  {'mesh.stage': 4, 'mesh.tensor': 2},
  {'mesh.stage': 4, 'mesh.fsdp': 2},
)


def bytes_per_device(config: ConfigDict) -> tuple[int, int]:
  """(bytes of state and batch, bytes of temporaries) per device."""
  sizes = config.mesh.to_dict()
  mesh, rules = (
    meshes.make(sizes, jax.devices()[: math.prod(sizes.values())]),
    sharding.parse_rules(config.rules),
  )
  experiment = Experiment(config)
  validate_run(experiment, mesh.size)
  model = experiment.build_model(VOCAB)
  boxed = estimate.abstract_state(experiment, model)
  where, split = states.state_shardings(boxed, mesh, rules), sharding.batch_sharding(mesh, rules)

  def with_sharding(x, where):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

  state = jax.tree.map(with_sharding, nn.unbox(boxed), where)
  batch = estimate.abstract_batch(padding_row(config.data.length), config.training.batch_size)
  batch = jax.tree.map(lambda x: with_sharding(x, split), batch)
  with sharding.context(mesh, rules):
    step = jitted(experiment.build_step(model), where)
    used = step.lower(state, batch).compile().memory_analysis()
  return used.argument_size_in_bytes, used.temp_size_in_bytes


def main() -> None:
  jax.config.update('jax_num_cpu_devices', 8)
  print('| | microbatches × rounds | bubble | parameters and moments, MiB | temporary, MiB |')
  print('|---|---|---|---|---|')
  for fields in CASES:
    config = complete(RUN)
    for path, value in fields.items():
      assign(config, path, value)
    config = resolve_config(config)
    plan = mesh_constraints.pipeline_schedule(config, config.mesh)
    words = ' '.join(f'{path}={value!r}'.replace("'", '') for path, value in fields.items()) or 'one device'
    work = f'{plan.microbatches} × {plan.repeats} | {plan.bubble:.1%}' if plan else '| '
    print(
      f'| {words} | {work} | {" | ".join(f"{size / 2**20:,.0f}" for size in bytes_per_device(config))} |',
      flush=True,
    )


if __name__ == '__main__':
  # Nothing runs, so XLA need not optimise.
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} --xla_backend_optimization_level=0'
  main()
