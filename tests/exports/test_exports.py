"""What is exported computes what the model computes, in processes that do not know this package."""

import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import tfm
from tests.exports.models import (
  MODELS,
  SIZES,
  assert_alike,
  expected_outputs,
  export,
  make_run,
  random_inputs,
)
from tfm.commands import cli
from tfm.commands.export import make_folder
from tfm.runs import train


pytestmark = pytest.mark.slow


# Runs in a process in which `import tfm` fails.
PROGRAM = """
import pathlib, sys
sys.modules['tfm'] = None
import jax, numpy as np
folder = pathlib.Path(sys.argv[1])
program = jax.export.deserialize((folder / 'model.stablehlo').read_bytes())
inputs = dict(np.load(folder / 'inputs.npz'))
arguments = [inputs[name] for name in sorted(inputs)]
if len(sys.argv) > 2:
  from safetensors.numpy import load_file
  arguments.insert(0, load_file(folder / 'model.safetensors'))
np.savez(folder / 'outputs.npz', **program.call(*arguments))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize('weights', ['inside', 'beside'])
@pytest.mark.parametrize('name', MODELS)
def test_stablehlo_runs_without_this_package(name, weights, tmp_path):
  run, inputs, folder = make_run(name), random_inputs(name), tmp_path / 'program'
  export(run, f'stablehlo(weights={weights!r})', folder)
  described = json.loads((folder / 'export.json').read_text('utf-8'))
  names = [one['name'] for one in described['inputs']]
  assert set(names) == set(inputs) and described['step'] == 5
  np.savez(folder / 'inputs.npz', **{f'{i}': inputs[key] for i, key in enumerate(names)})
  assert (folder / 'model.safetensors').exists() == (weights == 'beside')
  command = [sys.executable, '-c', PROGRAM, str(folder), *(['beside'] if weights == 'beside' else [])]
  subprocess.run(command, check=True, cwd=tmp_path, timeout=300)
  assert_alike(dict(np.load(folder / 'outputs.npz')), expected_outputs(run, inputs))


def test_a_model_without_symbolic_sizes_is_refused_and_exported_for_fixed_ones(tmp_path, monkeypatch):
  monkeypatch.setitem(MODELS, 'linear', dict(model=SIZES | dict(mixer='linear', position='none')))
  run = make_run('linear')
  with pytest.raises(ValueError, match=r'cannot be traced for any size .*stablehlo\(batch=1, length=128\)'):
    export(run, 'stablehlo', tmp_path / 'any')
  export(run, 'stablehlo(batch=3, length=9)', tmp_path / 'fixed')
  program = jax.export.deserialize((tmp_path / 'fixed' / 'model.stablehlo').read_bytes())
  inputs = random_inputs('decoder')
  assert_alike(program.call(inputs['tokens']), expected_outputs(run, inputs))


def test_a_program_with_a_cache_reads_a_row_in_pieces(tmp_path):
  run, tokens, folder = make_run('decoder'), random_inputs('decoder')['tokens'], tmp_path / 'steps'
  export(run, 'stablehlo(batch=3, cache=16)', folder)
  program = jax.export.deserialize((folder / 'model.stablehlo').read_bytes())
  described = json.loads((folder / 'export.json').read_text('utf-8'))['inputs']
  shapes, empty = {one['name']: one['shape'] for one in described}, load_file(folder / 'cache.safetensors')
  cache, logits = {name: np.broadcast_to(empty[name], shapes[name]) for name in shapes if name in empty}, []
  for piece in np.split(np.arange(9, dtype=np.int32), [5, 6]):
    positions = np.broadcast_to(piece, (3, len(piece)))
    outputs = program.call(tokens[:, piece], positions, np.ones_like(positions), *cache.values())
    cache = {name: outputs[f'new_{name}'] for name in cache}
    logits.append(outputs['logits'])
  assert_alike(dict(logits=np.concatenate(logits, 1)), expected_outputs(run, random_inputs('decoder')))


@pytest.mark.parametrize(
  'name, room, message',
  [
    (
      'decoder of learned positions',
      64,
      'cache=64 needs as many positions, and Learned has 32; use at most cache=32',
    ),
    ('encoder', 16, "cache=16 is for decoders, and config.model.architecture='encoder'; leave it out"),
    ('prefix', 16, 'sees a prefix whole, so that a text cannot be read in steps; leave out cache'),
  ],
)
def test_a_cache_of_what_is_not_read_in_steps_is_refused(name, room, message, tmp_path, monkeypatch):
  prefix = dict(model=SIZES | dict(mask='prefix'), objective='prefix_lm')
  monkeypatch.setitem(MODELS, 'prefix', prefix)
  with pytest.raises(ValueError, match=re.escape(message)):
    export(make_run(name), f'stablehlo(cache={room})', tmp_path / 'steps')


def test_safetensors_has_the_parameters_by_their_paths(tmp_path):
  run = make_run('decoder')
  export(run, 'safetensors', tmp_path / 'tensors')
  tensors = load_file(tmp_path / 'tensors' / 'model.safetensors')
  np.testing.assert_array_equal(tensors['embedding/table'], run.params['embedding']['table'])
  assert len(tensors) == len(jax.tree.leaves(run.params))
  assert json.loads((tmp_path / 'tensors' / 'config.json').read_text('utf-8'))['model']['width'] == 32


def test_a_trained_run_is_exported_and_what_does_not_fit_is_refused(tiny, tmp_path, capsys):
  train.train(tiny(**{'training.steps': 1}), str(tmp_path / 'run'))
  flags = ['export', f'--workdir={tmp_path / "run"}', f'--to={tmp_path / "out"}']
  assert cli.main([*flags, '--format=stablehlo']) == 0
  program = jax.export.deserialize((tmp_path / 'out' / 'model.stablehlo').read_bytes())
  tokens = np.arange(10, dtype=np.int32)[None]
  run = tfm.load(str(tmp_path / 'run'))
  expected = run.model.apply({'params': run.params}, *run.model.arguments(tokens))[0]
  np.testing.assert_allclose(program.call(tokens)['logits'], expected, atol=1e-4)
  flags[-1] = f'--to={tmp_path / "refused" / "out"}'
  for more, message in (
    (['--format=stablehol'], "did you mean 'stablehlo'"),
    (['--format=stablehlo(weights="outside")'], "weights='outside' must be 'inside' or 'beside'"),
    (['--format=stablehlo', '--family=gpt2'], '--family=gpt2 has no effect on --format=stablehlo'),
    (['--family=gtp2'], "did you mean 'gpt2'"),
    ([], 'was not imported; set --family, one of '),
  ):
    assert cli.main([*flags, *more]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'refused').exists()


def test_what_was_there_or_is_written_stays_after_a_refusal(tmp_path):
  (tmp_path / 'there').mkdir()
  with pytest.raises(ValueError, match='refused'), make_folder(tmp_path / 'there' / 'new' / 'out'):
    raise ValueError('refused')
  assert (tmp_path / 'there').is_dir() and not (tmp_path / 'there' / 'new').exists()
  with pytest.raises(ValueError, match='refused'), make_folder(tmp_path / 'there' / 'new') as folder:
    (folder / 'model').touch()
    raise ValueError('refused')
  assert (tmp_path / 'there' / 'new' / 'model').exists()
