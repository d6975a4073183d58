"""Temporary memory of the loss over a vocabulary, from XLA's memory analysis; nothing runs.

Temporaries are what is needed beside features, output projection and their gradients.

  python -m tfm.benchmark.loss     → a Markdown table: vocabulary × mesh, by tokens per chunk

The devices are eight simulated CPU devices.
"""

import jax
import jax.numpy as jnp

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states


ROWS, LENGTH, WIDTH = 8, 1024, 256
VOCABULARIES = 8_192, 32_768, 131_072
CHUNKS = 0, 2048, 512
MESHES = None, dict(fsdp=8), dict(tensor=8), dict(fsdp=2, tensor=4)


def temporary_bytes(vocab: int, chunk: int, sizes: dict[str, int] | None) -> int:
  """Temporary bytes per device."""
  config = resolve_config(
    complete(
      dict(
        data=dict(length=LENGTH), model=dict(layers=1, width=WIDTH, heads=8), training=dict(loss_chunk=chunk)
      )
    )
  )
  model, objective, rules = (
    Experiment(config).build_model(vocab),
    Experiment(config).objective,
    sharding.parse_rules(config.rules),
  )
  mesh = meshes.make(sizes or {}, None if sizes else jax.devices()[:1])
  boxed = states.abstract_state(lambda key: states.init_params(model, key, 1, LENGTH))
  head, rows = sharding.named_shardings(boxed, mesh, rules)['embedding'], sharding.batch_sharding(mesh, rules)

  def abstract_array(shape, dtype, where):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

  params = {'embedding': {'table': abstract_array((model.rows, WIDTH), jnp.float32, head['table'])}}
  batch = [
    abstract_array((ROWS, LENGTH, WIDTH), jnp.float32, rows),
    abstract_array((ROWS, LENGTH), jnp.int32, rows),
    abstract_array((ROWS, LENGTH), jnp.float32, rows),
  ]

  def loss(params, features, targets, weights):
    return objective.compute_loss(model, params, features, targets, weights, {})[0]

  with sharding.context(mesh, rules):
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), out_shardings=({'embedding': head}, rows))
    return gradient.lower(params, *batch).compile().memory_analysis().temp_size_in_bytes


def main() -> None:
  jax.config.update('jax_num_cpu_devices', 8)
  print(
    f'| vocabulary | mesh | {" | ".join(f"{chunk:,} tokens" if chunk else "one chunk" for chunk in CHUNKS)} |'
  )
  print('|---' * (2 + len(CHUNKS)) + '|')
  for vocab in VOCABULARIES:
    for sizes in MESHES:
      cells = (f'{temporary_bytes(vocab, chunk, sizes) / 2**20:,.1f}' for chunk in CHUNKS)
      print(f'| {vocab:,} | {meshes.format_sizes(sizes or {})} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
