"""One process of several that read a model into its shardings, export and import it, and its peak memory.

python tests/runs/measure_restore.py PORT COUNT INDEX WIDTH LAYERS FOLDER

Prints JSON: bytes of the process's share of the parameters and of the largest tensor, and for each stage the
peak of the process's memory above what it held before the first stage.
"""

import ctypes
import gc
import json
import os
import pathlib
import sys


os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = ''
# Freed memory returns to the system at once.
os.environ['MALLOC_MMAP_THRESHOLD_'] = '131072'

import jax  # noqa: E402


port, count, index, width, layers = map(int, sys.argv[1:6])
jax.distributed.initialize(f'localhost:{port}', count, index)

import flax.linen as nn  # noqa: E402

from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import assign, complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.hf import convert  # noqa: E402
from tfm.hf.pretrained import from_pretrained  # noqa: E402
from tfm.parallel import mesh as meshes  # noqa: E402
from tfm.parallel import processes, sharding  # noqa: E402
from tfm.runs import load  # noqa: E402
from tfm.runs.init_from import abstract_params, build_model  # noqa: E402
from tfm.training import state as states  # noqa: E402
from tfm.training.checkpoint import Checkpoints  # noqa: E402


def memory(kind):
  lines = pathlib.Path('/proc/self/status').read_text().splitlines()
  return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def release():
  """Frees what is not used, and forgets the peak."""
  gc.collect()
  ctypes.CDLL('libc.so.6').malloc_trim(0)
  pathlib.Path('/proc/self/clear_refs').write_text('5')


def divide(config):
  for path, value in {'mesh.data': 1, 'mesh.fsdp': count}.items():
    assign(config, path, value)
  return config


def write_run(folder):
  """A run of LLaMA's kind at step 0, without training."""
  fields = {'data.length': 128, 'data.tokenizer': 'bytes', 'data.source': f'text({str(folder)!r})'}
  shape = {'model.layers': layers, 'model.width': width, 'model.heads': width // 64, 'model.scan': True}
  config = complete(dict())
  for path, value in (fields | shape | {'model.norm': 'rmsnorm', 'model.feed_forward': 'swiglu'}).items():
    assign(config, path, value)
  config = resolve_config(divide(config))
  experiment = Experiment(config)
  tokenizer = experiment.tokenizer.train(())
  model = build_model(experiment, tokenizer, None)
  mesh, boxed = meshes.from_config(config), abstract_params(experiment, model)
  where = sharding.named_shardings(boxed, mesh, experiment.rules)
  with sharding.context(mesh, experiment.rules):
    init = jax.jit(lambda key: nn.unbox(states.init_params(model, key, 1, 128, None)), out_shardings=where)
    params = init(jax.random.key(0))
  checkpoints = Checkpoints(folder, keep=1)
  run = dict(
    config=config.to_dict(), corpus='', tokenizer=tokenizer.state(), data=None, source_tokenizer=None
  )
  checkpoints.save_params(params, run)
  checkpoints.close()
  sizes = [leaf.size * 4 for leaf in jax.tree.leaves(params)]
  shares = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params)]
  of_layer = [size // layers if size > sum(sizes) // 100 else size for size in sizes]
  return sum(sizes), sum(shares), max(of_layer)


folder = pathlib.Path(sys.argv[6])
size, share, tensor = write_run(folder / 'run')
release()
before, peaks = memory('VmRSS'), {}
run = load.load(folder / 'run', override=divide)
peaks['restore'] = memory('VmHWM') - before
release()
convert.export_to_hf(run, str(folder / 'run'), str(folder / 'published'), 'llama')
peaks['export'] = memory('VmHWM') - before
del run
processes.barrier()
release()
pretrained = from_pretrained(str(folder / 'published'), mesh=dict(data=1, fsdp=count))
peaks['import'] = memory('VmHWM') - before
print(json.dumps(dict(size=size, share=share, tensor=tensor, peaks=peaks)), flush=True)
