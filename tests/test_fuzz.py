"""A sample of the attacks of tests/fuzz.py."""

import pytest

from tests import fuzz


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sample_of_attacks_has_no_finding(seed, capsys):
  status = fuzz.main([f'--seed={seed}', '--cases=200'])
  assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize(
  'case, finding',
  [
    (lambda: 1 / 0, 'ZeroDivisionError'),
    (lambda: raise_error('x is\nnot one line'), 'unreadable message'),
    (lambda: fuzz.time.sleep(3), 'hang'),
  ],
)
def test_findings_are_found(case, finding, monkeypatch):
  monkeypatch.setattr(fuzz, 'SECONDS', 1)
  assert fuzz.run(case).startswith(finding)


def raise_error(message):
  raise ValueError(message)


def test_sentences_are_rejections():
  assert fuzz.run(lambda: raise_error('x=3 must be at least 4')) == 'rejected'
  assert fuzz.run(lambda: raise_error('bad')).startswith('unreadable')
  assert fuzz.run(lambda: raise_error('two lines are\nnot one sentence')).startswith('unreadable')
