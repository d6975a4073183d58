"""The peak memory of loading a checkpoint: the parameters, and little more than one tensor."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tfm.hf import tensor_files


WIDTH, HIDDEN, LAYERS, VOCAB = 2048, 8192, 3, 1024  # 0.2 billion parameters
MB = 2**20
# Compiling for large shapes takes 15 MB. What loading any model takes, imports above all, is loaded with a
# small model before measuring begins.
MARGIN = 24 * MB
# RssAnon excludes mapped pages of files, which the system can reclaim.
READ = """
import json, sys, threading
import jax
import tfm

def read_memory():
  with open('/proc/self/status') as lines:
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('RssAnon'))

def watch():
  while not ended.wait(0.002):
    samples.append(read_memory())

jax.block_until_ready(tfm.from_pretrained(sys.argv[1], sys.argv[3]).params)
ended, before = threading.Event(), read_memory()
samples = [before]
thread = threading.Thread(target=watch)
thread.start()
params = tfm.from_pretrained(sys.argv[2], sys.argv[3]).params
ended.set()
thread.join()
size = sum(x.nbytes for x in jax.tree.leaves(params))
print(json.dumps(dict(peak=max(samples) - before, samples=len(samples), size=size)))
"""


@pytest.fixture(scope='module', params=['float32', 'bfloat16'])
def folders(request, tmp_path_factory):
  """A small checkpoint and a large one, in several files, with values of one dtype."""
  import ml_dtypes

  dtype = np.dtype(getattr(ml_dtypes, request.param, request.param))
  small, large = tmp_path_factory.mktemp('small'), tmp_path_factory.mktemp('large')
  write_checkpoint(small, 64, 256, dtype)
  write_checkpoint(large, WIDTH, HIDDEN, dtype)
  assert len([*large.glob('*.safetensors')]) > 2
  return small, large, WIDTH * HIDDEN * dtype.itemsize


def write_checkpoint(folder, width, hidden, dtype):
  def values(*shape):
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 97).astype(dtype)

  def iterate_tensors():
    yield 'model.embed_tokens.weight', values(VOCAB, width)
    yield 'model.norm.weight', values(width)
    for i in range(LAYERS):
      for letter in 'qkvo':
        yield f'model.layers.{i}.self_attn.{letter}_proj.weight', values(width, width)
      for name, shape in dict(gate=(hidden, width), up=(hidden, width), down=(width, hidden)).items():
        yield f'model.layers.{i}.mlp.{name}_proj.weight', values(*shape)
      for name in ('input', 'post_attention'):
        yield f'model.layers.{i}.{name}_layernorm.weight', values(width)

  names = [name for name, _ in iterate_tensors()]
  tensor_files.save_tensors(folder, iterate_tensors(), names, max_bytes=150 * MB)
  (folder / 'config.json').write_text(
    json.dumps(
      dict(
        architectures=['LlamaForCausalLM'],
        model_type='llama',
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        tie_word_embeddings=True,
      )
    )
  )


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path('/proc/self/status').exists(), reason='reads /proc, of Linux')
def test_peak_memory_is_at_most_two_tensors_above_the_parameters(folders, root):
  """One tensor as stored, and one on its way to the device."""
  small, large, largest = folders
  # Freed memory returns to the system at once; by default glibc keeps blocks of up to 32 MB.
  environment = os.environ | dict(MALLOC_MMAP_THRESHOLD_='131072', JAX_PLATFORMS='cpu', PYTHONPATH=str(root))
  done = subprocess.run(
    [sys.executable, '-c', READ, small, large, 'float32'],
    env=environment,
    capture_output=True,
    text=True,
    check=True,
  )
  report = json.loads(done.stdout.splitlines()[-1])
  assert report['samples'] > 100 and report['size'] > 700 * MB
  assert report['peak'] >= report['size']  # otherwise nothing was measured
  over = report['peak'] - report['size']
  assert over <= 2 * largest + MARGIN, f'{over / MB:.0f} MB above the parameters'
