"""The benchmark of rematerialization: less memory without a policy. No test depends on a time."""

import argparse

import pytest

from tfm.benchmark import compare_remat, remat


@pytest.mark.slow  # tests/models/test_stack.py counts what is stored
def test_the_step_without_a_policy_has_smaller_temporaries(monkeypatch):
  model = dict(layers=3, width=64, heads=2, feed_forward='gelu_tanh')
  monkeypatch.setitem(remat.MODELS, 'gpt2', (model, 4, 64))
  found = remat.main('gpt2', rounds=1)
  assert [*found] == ['everything', 'none']
  assert 0 < found['none']['mib'] < 0.8 * found['everything']['mib']
  assert found['none']['ms'] > 0


def test_the_ratio_is_that_of_times(monkeypatch, capsys):
  found = dict(everything=dict(ms=200, mib=1000), none=dict(ms=180, mib=400))
  monkeypatch.setattr(compare_remat, 'measure', lambda module, name: found)
  compare_remat.main(argparse.Namespace())
  rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1:]]
  assert rows[-len(remat.MODELS) :] == [[name, '1,000', '400', '200', '180', '0.90'] for name in remat.MODELS]
