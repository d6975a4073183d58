"""Benchmarks beside PyTorch: their ratios and arguments. No test depends on a time."""

import argparse
import json

import pytest

from tfm.benchmark import (
  beside_torch,
  compare_encoder_decoder,
  compare_gpt2,
  compare_nanogpt,
  encoder_decoder,
  gpt2,
)


@pytest.fixture
def measured(monkeypatch):
  """Processes whose tokens/s are 1, 2, 3, … for tfm and 1 for PyTorch; returns what they are called with."""
  calls = []

  def measure(module, *args):
    calls.append((module, *args))
    count = sum(call[0] == module for call in calls)
    return dict(tokens_per_second=count if 'torch' not in module else 1, peak_memory_mib=10)

  monkeypatch.setattr(beside_torch, 'measure', measure)
  monkeypatch.setattr(beside_torch.importlib.util, 'find_spec', lambda name: name)
  monkeypatch.setattr(beside_torch, 'describe_machine', lambda: 'a machine')
  return calls


def test_ratios_are_of_medians_and_processes_alternate(measured, capsys):
  compare_encoder_decoder.main(argparse.Namespace(rounds=3))
  rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1:]]
  assert rows[-3:] == [
    ['Marian', '2', '1', '2.00', '10', '10', '1.00'],
    ['BART', '5', '1', '5.00', '10', '10', '1.00'],
    ['T5', '8', '1', '8.00', '10', '10', '1.00'],
  ]
  modules = 'tfm.benchmark.encoder_decoder', 'tfm.benchmark.encoder_decoder_torch'
  assert measured == [(m, name) for name in ('marian', 'bart', 't5') for _ in range(3) for m in modules]


def test_without_pytorch_tfm_alone_is_measured(measured, monkeypatch, capsys):
  monkeypatch.setattr(beside_torch.importlib.util, 'find_spec', lambda name: None)
  compare_gpt2.main(argparse.Namespace(rounds=1))
  out = capsys.readouterr().out
  assert 'make oracle' in out and 'training, 12 rows' in out
  assert [call[0] for call in measured] == ['tfm.benchmark.gpt2'] * len(compare_gpt2.MEASUREMENTS)


def test_no_rounds_are_refused():
  with pytest.raises(ValueError, match='--rounds=0 must be at least 1'):
    compare_gpt2.main(argparse.Namespace(rounds=0))


@pytest.mark.slow
@pytest.mark.parametrize('name', encoder_decoder.CONFIGS)
def test_encoder_decoders_train(name, monkeypatch):
  """Smaller ones, for one step."""
  small = {field: 16 for field in encoder_decoder.CONFIGS[name] if field in ('d_model', 'd_kv')}
  monkeypatch.setitem(encoder_decoder.CONFIGS, name, encoder_decoder.CONFIGS[name] | small)
  monkeypatch.setattr(encoder_decoder, 'TRAINING_SECONDS', 0.0)
  assert encoder_decoder.main(name) > 0


# The others compile what these do, of other shapes, or are a sampled or a beam search that others test.
FAST = ('decoding', '8', '1'), ('training', '2', 'flags=auto ynnpack', 'length=8')


@pytest.mark.parametrize(
  'arguments',
  [
    pytest.param(words, marks=() if words in FAST else pytest.mark.slow, id=' '.join(words))
    for words in (*compare_gpt2.MEASUREMENTS.values(), ('training', '2', 'save("attention")'), FAST[1])
  ],
)
def test_gpt2_is_measured_as_the_command_says(arguments, monkeypatch, capsys):
  monkeypatch.setattr(gpt2, 'SHAPE', dict(layers=1, width=16, heads=2, length=16, vocab=32))
  monkeypatch.setattr(gpt2, 'DECODING', dict(prompt=4, new=8, rounds=1))
  monkeypatch.setattr(gpt2, 'TRAINING_SECONDS', 0.0)
  monkeypatch.setattr(gpt2.sys, 'argv', ['gpt2', *arguments])
  gpt2.print_measurement(dict(training=gpt2.measure_training, decoding=gpt2.measure_decoding))
  found = json.loads(capsys.readouterr().out)
  assert found['tokens_per_second'] > 0 and found['peak_memory_mib'] > 100


def test_gpt2_takes_a_policy_of_remat():
  with pytest.raises(ValueError, match="config.model.remat='nothing'"):
    gpt2.measure_training(2, 'nothing')


def test_beside_nanogpt_each_round_is_a_ratio(monkeypatch, capsys):
  """Of tfm to the faster of both processes of PyTorch in that round."""
  seconds = {
    ('tfm.benchmark.gpt2',): [2.0, 1.0, 1.0],
    ('tfm.benchmark.gpt2', 'flags=auto ynnpack'): [1.0, 1.0, 1.0],
    ('tfm.benchmark.nanogpt_torch',): [3.0, 3.0, 3.0],
    ('tfm.benchmark.nanogpt_torch', 'compiled=1'): [4.0, 4.0, 1.5],
  }
  calls = []

  def measure(module, task, rows, *fields):
    assert (task, rows, fields[0]) == ('training', '4', 'length=1024')
    calls.append((module, *fields[1:]))
    mib = {'tfm.benchmark.gpt2': 90, 'tfm.benchmark.nanogpt_torch': 100}[module]
    return dict(tokens_per_second=4 * 1024 / seconds[calls[-1]].pop(0), peak_memory_mib=mib)

  monkeypatch.setattr(compare_nanogpt, 'measure', measure)
  monkeypatch.setattr(compare_nanogpt.importlib.util, 'find_spec', lambda name: name)
  monkeypatch.setattr(compare_nanogpt, 'describe_machine', lambda: 'a machine')
  compare_nanogpt.main(argparse.Namespace(rounds=3, shapes='long'))
  rows = [line.rsplit(maxsplit=6) for line in capsys.readouterr().out.splitlines() if '.' in line]
  assert [[row[0].strip(), *row[1:]] for row in rows] == [
    ['tfm', '1', '1.50', '1.50', '3.00', '90', '0.90'],
    ['tfm, ynnpack', '1', '3.00', '1.50', '3.00', '90', '0.90'],
    ['PyTorch, eager', '3', '1.00', '0.50', '1.00', '100', '1.00'],
    ['PyTorch, compiled', '4', '0.75', '0.75', '1.00', '100', '1.00'],
  ]
  assert calls == list(seconds) * 3
  with pytest.raises(ValueError, match='--shapes=smal is unknown; known: small, .* did you mean'):
    compare_nanogpt.main(argparse.Namespace(rounds=1, shapes='smal'))
