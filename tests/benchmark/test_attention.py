"""The attention benchmark: measurements, fits, tables. No test depends on a time."""

import importlib.util
import json

import jax
import pytest

from tfm.benchmark import attention, compare_attention, curves
from tfm.benchmark.process import OutOfMemory, describe_machine, measure
from tfm.commands import cli


def test_exponent_is_fitted_from_the_minimum_length_on():
  quadratic = {n: 3e-4 * n**2 for n in (2048, 4096, 8192)} | {256: 1000.0}  # short lengths do not count
  assert curves.fit_exponent(quadratic) == pytest.approx(2)
  assert curves.fit_exponent({n: 5.0 * n for n in (2048, 4096, 8192, 16384)}) == pytest.approx(1)
  assert curves.fit_exponent({2048: 1.0, 4096: 2.0}) is None


@pytest.mark.slow
@pytest.mark.parametrize(
  'args',
  [('kernel', 'chunked', 't5'), pytest.param(('mixer', 'softmax, window(256)'), marks=pytest.mark.slow)],
)
def test_one_process_measures_forward_and_backward(args):
  result = measure('tfm.benchmark.attention', *args, '64')
  assert result.keys() == {'forward', 'both'}
  assert all(entry['ms'] > 0 and entry['mib'] >= 0 for entry in result.values())


@pytest.mark.slow
def test_computation_beyond_free_memory_raises_before_running():
  with pytest.raises(OutOfMemory, match='GiB'):
    measure('tfm.benchmark.attention', 'kernel', 'dense', 'causal', str(2**17))


@pytest.mark.parametrize(
  'mixer',
  [pytest.param(mixer, marks=[pytest.mark.slow] * (i > 1)) for i, mixer in enumerate(attention.MIXERS)],
)
def test_every_mixer_of_the_benchmark_builds(mixer):
  run, arguments = attention.make_mixer(attention.MIXERS[mixer], 64)
  assert jax.eval_shape(run, *arguments).shape == (1, 64, attention.SHAPE.width)


def fake_result(run):
  """Dense is quadratic and runs out of memory at 8192; everything else is linear."""
  length = int(run[-1])
  if 'dense' in run and length > 4096:
    return {}
  ms = length**2 / 1e4 if 'dense' in run else length / 10
  return dict(
    forward=dict(ms=ms, mib=float(length)), both=None if length > 8192 else dict(ms=3 * ms, mib=2.0 * length)
  )


@pytest.mark.slow
def test_tables_curves_and_resumption(tmp_path, monkeypatch, capsys):
  measured = []
  monkeypatch.setattr(
    compare_attention, 'measure_or_empty', lambda run: measured.append(run) or fake_result(run)
  )
  out = tmp_path / 'a'
  command = ['benchmark', 'attention', '--lengths=2048,4096,8192,16384', f'--to={out}']
  assert cli.main(command) == 0
  text = capsys.readouterr().out
  lines = [[cell.strip() for cell in line.strip(' |').split('|')] for line in text.splitlines()]
  causal = [line for line in lines if line[0] == 'causal']
  torch_ms = '205' if importlib.util.find_spec('torch') else '–'
  assert causal[0][1:6] == ['2048', '419', '205', torch_ms, '2.05']
  assert causal[2][2] == 'no memory'
  assert any(line[0] == 'mamba' and '1.00' in line for line in lines)
  assert (tmp_path / 'a.png').stat().st_size > 10_000
  logged = [json.loads(line) for line in (tmp_path / 'a.jsonl').read_text().splitlines()]
  assert len(logged) == len(measured) and logged[0]['machine'] == describe_machine()
  before = len(measured)
  assert cli.main(command) == 0 and len(measured) == before  # nothing is measured twice


def test_one_variant_alone(tmp_path, monkeypatch, capsys):
  measured = []
  monkeypatch.setattr(
    compare_attention, 'measure_or_empty', lambda run: measured.append(run) or fake_result(run)
  )
  command = ['attention', '--lengths=2048', '--only=kernels', '--cases=window', f'--to={tmp_path / "a"}']
  assert cli.main(['benchmark', *command]) == 0
  out = capsys.readouterr().out
  assert {run[-2] for run in measured} == {'window'} and '| window' in out and '| causal' not in out


def test_results_of_another_machine_are_rejected(tmp_path, capsys):
  (tmp_path / 'a.jsonl').write_text(json.dumps(dict(run=['x'], machine='an abacus', result={})) + '\n')
  assert cli.main(['benchmark', 'attention', f'--to={tmp_path / "a"}']) == 2
  assert 'holds measurements of another machine (an abacus)' in capsys.readouterr().err


@pytest.mark.parametrize(
  'argv, message',
  [
    (['attention', '--to=x', '--lengths=0'], '--lengths contains 0; a row has at least 1 token'),
    (['attention', '--to=x', '--cases=casual'], "--cases: 'casual' is unknown; known: causal, window"),
    (['gpt2', '--rounds=0'], '--rounds=0 must be at least 1'),
  ],
)
def test_invalid_arguments_are_rejected(argv, message, capsys):
  assert cli.main(['benchmark', *argv]) == 2
  assert message in capsys.readouterr().err
