"""What reading a checkpoint holds in memory at once: the parameters, and hardly more than one tensor beside them."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tfm.hf.families import tensors


WIDTH, HIDDEN, LAYERS, VOCAB = 2048, 8192, 3, 1024  # 0.2 billion parameters
MB = 2**20
# The same with hardly any parameters takes 25 MB: traces of the model, what is compiled, lists of names.
MARGIN = 40 * MB
# RssAnon has no pages of files in it, which are mapped and cost nothing that cannot be taken back.
READ = """
import json, sys, threading
import jax
import tfm
from tfm import declared

def held():
  with open('/proc/self/status') as lines:
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('RssAnon'))

def watch():
  while not ended.wait(0.002):
    seen.append(held())

jax.block_until_ready(jax.numpy.zeros(3))
declared.families()
ended, before = threading.Event(), held()
seen = [before]
thread = threading.Thread(target=watch)
thread.start()
params = tfm.from_pretrained(sys.argv[1], sys.argv[2]).params
ended.set()
thread.join()
print(json.dumps(dict(peak=max(seen) - before, samples=len(seen), size=sum(x.nbytes for x in jax.tree.leaves(params)))))
"""


@pytest.fixture(scope='module', params=['float32', 'bfloat16'])
def folder(request, tmp_path_factory):
  """A checkpoint in several files, its numbers of a type, and the bytes of its largest tensor."""
  import ml_dtypes

  dtype = np.dtype(getattr(ml_dtypes, request.param, request.param))
  folder = tmp_path_factory.mktemp(request.param)

  def made(*shape):
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 97).astype(dtype)

  def stored():
    yield 'model.embed_tokens.weight', made(VOCAB, WIDTH)
    yield 'model.norm.weight', made(WIDTH)
    for i in range(LAYERS):
      for letter in 'qkvo':
        yield f'model.layers.{i}.self_attn.{letter}_proj.weight', made(WIDTH, WIDTH)
      for name, shape in dict(gate=(HIDDEN, WIDTH), up=(HIDDEN, WIDTH), down=(WIDTH, HIDDEN)).items():
        yield f'model.layers.{i}.mlp.{name}_proj.weight', made(*shape)
      for name in ('input', 'post_attention'):
        yield f'model.layers.{i}.{name}_layernorm.weight', made(WIDTH)

  tensors.save_tensors(folder, stored(), max_bytes=150 * MB)
  (folder / 'config.json').write_text(
    json.dumps(
      dict(
        architectures=['LlamaForCausalLM'],
        model_type='llama',
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        tie_word_embeddings=True,
      )
    )
  )
  assert len([*folder.glob('*.safetensors')]) > 2
  return folder, WIDTH * HIDDEN * dtype.itemsize


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path('/proc/self/status').exists(), reason='reads /proc, of Linux')
def test_two_tensors_beside_the_parameters(folder, root):
  """One as it is stored, and it or one before it on the device."""
  path, largest = folder
  # Memory that was let go is counted as such: glibc else keeps blocks of up to 32 MB for later.
  environment = os.environ | dict(MALLOC_MMAP_THRESHOLD_='131072', JAX_PLATFORMS='cpu', PYTHONPATH=str(root))
  done = subprocess.run(
    [sys.executable, '-c', READ, path, 'float32'], env=environment, capture_output=True, text=True, check=True
  )
  found = json.loads(done.stdout.splitlines()[-1])
  assert found['samples'] > 100 and found['size'] > 700 * MB
  assert found['peak'] >= found['size']  # or it was not measured
  over = found['peak'] - found['size']
  assert over <= 2 * largest + MARGIN, f'{over / MB:.0f} MB beside the parameters'
