"""One process of several that save a synthetic state, and what it read and wrote for that.

python tests/training/measure_save.py PORT COUNT INDEX MEGABYTES FOLDER
"""

import json
import os
import pathlib
import sys
import time


os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = ''

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from tfm.training.checkpoint import Checkpoints  # noqa: E402
from tfm.training.state import State  # noqa: E402


def count_bytes():
  lines = pathlib.Path('/proc/self/io').read_text().splitlines()
  return {name: int(number) for name, number in (line.split(': ') for line in lines)}


port, count, index, megabytes = map(int, sys.argv[1:5])
jax.distributed.initialize(f'localhost:{port}', count, index)
mesh = jax.make_mesh((count,), ('fsdp',))
cut, whole = NamedSharding(mesh, PartitionSpec('fsdp')), NamedSharding(mesh, PartitionSpec())
# Random numbers: zeros would be compressed to nothing, these lose a tenth.
rows = megabytes * 2**20 // 4 // 1024 // count * count
params = jax.jit(lambda: jax.random.normal(jax.random.key(0), (rows, 1024)), out_shardings=cut)()
step, key = jax.jit(lambda: (jnp.int32(1), jnp.zeros(2, jnp.uint32)), out_shardings=whole)()
state = State(step=step, params={'kernel': params}, opt_state=(), key=key, loss_scale=None)
checkpoints = Checkpoints(pathlib.Path(sys.argv[5]), keep=1)
before, start = count_bytes(), time.monotonic()
checkpoints.save(state, {}, None)
checkpoints.wait()
seconds, after = time.monotonic() - start, count_bytes()
print(
  json.dumps(
    dict(
      seconds=round(seconds, 2),
      share=params.nbytes // count,
      read=after['rchar'] - before['rchar'],
      written=after['wchar'] - before['wchar'],
    )
  )
)
checkpoints.close()
