"""The serving benchmark: its table, and one measurement. No test depends on a time."""

import argparse
import importlib.util

import pytest

from tfm.benchmark import compare_serving
from tfm.benchmark.compare_serving import Load


SIZES = dict(clients=2, requests=3, tokens=4, rows=2, rounds=1)


def test_the_ratio_is_that_of_medians(capsys):
  texts = [['a', 'b'], ['a', 'c']]
  rates = (10, 30, 20), (2, 1, 8)
  loads = {
    name: [Load(rate, [1.0, 3.0], own) for rate in of_one]
    for name, of_one, own in zip(('tfm serve', 'generate'), rates, texts)
  }
  compare_serving.print_table(loads)
  output = capsys.readouterr().out
  assert 'speed ratio: 10.00; 1 of 2 texts are equal' in output
  assert [line.split() for line in output.splitlines() if 'generate' in line] == [
    ['generate', '2', '2.00', '3.00']
  ]
  with pytest.raises(ValueError, match='--rounds=0 must be at least 1'):
    compare_serving.main(argparse.Namespace(**SIZES | dict(rounds=0)))


@pytest.mark.slow
def test_a_server_is_measured(capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)  # without PyTorch
  monkeypatch.setenv('XLA_FLAGS', '')  # one device
  compare_serving.main(argparse.Namespace(**SIZES))
  output = capsys.readouterr().out
  assert 'tfm serve' in output and 'make oracle' in output and 'ratio' not in output
