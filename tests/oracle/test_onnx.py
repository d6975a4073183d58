"""Exported graphs: ONNX Runtime computes the logits of the model."""

import json
import subprocess
import sys

import pytest

from tests.exports.models import MODELS, assert_alike, expected_outputs, make_run, random_inputs
from tests.paths import ROOT


pytestmark = pytest.mark.oracle


@pytest.mark.parametrize('name', MODELS)
def test_onnx_runtime_computes_the_logits(name, tmp_path):
  onnxruntime, folder = pytest.importorskip('onnxruntime'), tmp_path / 'graph'
  # In a process of its own, because jax2onnx replaces functions of JAX.
  command = [sys.executable, '-m', 'tests.exports.models', name, 'onnx', str(folder)]
  subprocess.run(command, check=True, cwd=ROOT, timeout=500)
  session, inputs = onnxruntime.InferenceSession(folder / 'model.onnx'), random_inputs(name)
  names = json.loads((folder / 'export.json').read_text('utf-8'))['outputs']
  outputs = dict(zip(names, session.run(names, inputs), strict=True))
  assert_alike(outputs, expected_outputs(make_run(name), inputs))
  more = random_inputs(name, rows=5)
  outputs = dict(zip(names, session.run(names, more), strict=True))
  assert_alike(outputs, expected_outputs(make_run(name), more))
