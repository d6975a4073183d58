"""Exported graphs: ONNX Runtime computes the logits of the model, and writes its text."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.exports.models import MODELS, VOCAB, assert_alike, expected_outputs, make_run, random_inputs
from tests.paths import ROOT
from tfm.decoding.loop import generate_all


pytestmark = pytest.mark.oracle
# A model, its format, and how many tokens a call reads at most.
CACHED = (
  ('decoder', 'onnx(cache=32)', 7),
  ('decoder', 'onnx(cache=32)', 3),
  ('decoder of learned positions', 'onnx(cache=32)', 7),
  ('decoder of rounded keys', 'onnx(cache=32)', 7),
  ('decoder of short convolutions', 'onnx(cache=32, length=1)', 1),
)


@pytest.mark.parametrize('name', MODELS)
def test_onnx_runtime_computes_the_logits(name, tmp_path):
  run = Graph(name, 'onnx', tmp_path / 'graph')
  for rows in 3, 5:
    inputs = random_inputs(name, rows=rows)
    assert_alike(run(inputs), expected_outputs(make_run(name), inputs))


@pytest.mark.parametrize('name, text, width', CACHED)
def test_onnx_runtime_writes_the_text_of_a_decoder_with_its_cache(name, text, width, tmp_path):
  run, expected = Graph(name, text, tmp_path / 'graph'), make_run(name)
  count, draw = 12, np.random.default_rng(0)
  prompts = [draw.integers(0, VOCAB, size) for size in (7, 3, 1, 5)]
  tokens, positions, mask = np.zeros((3, len(prompts), 7), np.int32)
  for i, prompt in enumerate(prompts):
    tokens[i, -len(prompt) :], positions[i, -len(prompt) :] = prompt, np.arange(len(prompt))
    mask[i, -len(prompt) :] = 1
  inputs = {one['name']: one['shape'] for one in run.description['inputs']}
  cache = {
    name: x if 'batch' not in inputs[name] else np.repeat(x, len(prompts), inputs[name].index('batch'))
    for name, x in load_file(tmp_path / 'graph' / 'cache.safetensors').items()
  }
  written = []
  while len(written) < count:
    inputs = dict(tokens=tokens, positions=positions, mask=mask)
    outputs, last = run({name: x[:, :width] for name, x in inputs.items()} | cache), positions[:, -1:]
    cache = {name: outputs[f'new_{name}'] for name in cache}
    tokens, positions, mask = tokens[:, width:], positions[:, width:], mask[:, width:]
    if not tokens.size:
      tokens = outputs['logits'][:, -1:].argmax(-1).astype(np.int32)
      positions, mask = last + 1, np.ones_like(tokens)
      written.append(tokens)
  texts = generate_all(expected.model, expected.params, prompts, max_tokens=count, eos=None)
  np.testing.assert_array_equal(np.concatenate(written, 1), texts)
  assert len(np.unique(written)) > 4


def test_onnx_runtime_writes_the_text_of_an_encoder_decoder(tmp_path):
  name, count, start = 'encoder-decoder of untied embeddings', 12, 1
  run, expected, inputs = Graph(name, 'onnx', tmp_path / 'graph'), make_run(name), random_inputs(name)
  inputs['tokens'] = np.full((len(inputs['source']), 1), start, np.int32)
  sources = [row[: mask.sum()] for row, mask in zip(inputs['source'], inputs['mask'])]
  for _ in range(count):
    tokens = run(inputs)['logits'][:, -1:].argmax(-1).astype(np.int32)
    inputs['tokens'] = np.concatenate([inputs['tokens'], tokens], 1)
  prompts = [[start]] * len(sources)
  texts = generate_all(expected.model, expected.params, prompts, sources=sources, max_tokens=count, eos=None)
  np.testing.assert_array_equal(inputs['tokens'][:, 1:], texts)
  assert len(np.unique(texts)) > 4


def test_a_graph_that_no_runtime_loads_is_refused(tmp_path):
  pytest.importorskip('onnxruntime')
  command = [sys.executable, '-m', 'tests.exports.models', 'mamba', 'onnx(length=9)', str(tmp_path / 'graph')]
  result = subprocess.run(command, cwd=ROOT, timeout=500, capture_output=True, text=True)
  assert 'has a model that jax2onnx does not convert' in result.stderr
  assert not (tmp_path / 'graph' / 'model.onnx').exists()


class Graph:
  """A graph, exported in a process of its own, because jax2onnx replaces functions of JAX."""

  def __init__(self, name, spec, folder):
    onnxruntime = pytest.importorskip('onnxruntime')
    command = [sys.executable, '-m', 'tests.exports.models', name, spec, str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=500)
    self.session = onnxruntime.InferenceSession(folder / 'model.onnx')
    self.description = json.loads((folder / 'export.json').read_text('utf-8'))

  def __call__(self, inputs):
    names = self.description['outputs']
    return dict(zip(names, self.session.run(names, inputs), strict=True))
