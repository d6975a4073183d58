"""The benchmark of beam search: what it asks, shows and refuses. That Marian is given the same model, tests/oracle shows."""

import pytest

from tests.models import pairs
from tfm.benchmark import compare_translation
from tfm.benchmark.translation_torch import check
from tfm.commands import cli
from tfm.config.load import to_json


MARIAN = dict(position='sinusoidal', feed_forward='relu', embedding_scaled=True)


def test_the_two_take_turns_and_the_ratio_is_of_medians(monkeypatch, capsys, tmp_path):
  (tmp_path / 'config.json').write_text(to_json(pairs.config(**MARIAN)))
  asked, seconds = [], iter([1.0, 3.0, 9.0, 4.0, 2.0, 90.0])

  def measure(module, *what):
    asked.append((module.rpartition('.')[2], *what))
    return dict(seconds=next(seconds), bleu=41.0, texts=['ein hund', 'zwei' if 'torch' in module else 'drei'])

  monkeypatch.setattr(compare_translation, 'measure', measure)
  monkeypatch.setattr('importlib.util.find_spec', lambda name: name)
  monkeypatch.setattr(compare_translation, 'machine', lambda: 'here')
  assert cli.main(['benchmark', 'translation', f'--workdir={tmp_path}']) == 0
  assert asked == [(name, str(tmp_path), 'test', '4') for name in ('translation', 'translation_torch')] * 3
  out = capsys.readouterr().out
  assert ['PyTorch', '2', '4.00', '0.5', '41.00'] in [line.split() for line in out.splitlines()]
  assert 'ratio of speed: 2.00; 1 of 2 translations are the same' in out


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(position='rope'), "config.model.position='rope' is not Marian's, which has 'sinusoidal'"),
    (dict(kv_heads=2), 'config.model.kv_heads=2'),
    (dict(norm_placement='sandwich'), "config.model.norm_placement='sandwich'"),
    (dict(encoder=dict(norm_placement='post')), "config.model.encoder.norm_placement='post'"),
    (dict(bias=False), 'config.model.bias=False'),
    (dict(tied=False), 'config.model.tied=False'),
    (dict(embedding_width=8), 'config.model.embedding_width=8'),
    (dict(output_soft_cap=5.0), 'config.model.output_soft_cap=5.0'),
    (dict(encoder=dict(position='none')), "config.model.encoder.position='none'"),
    (dict(cross=dict(heads=2)), 'config.model.cross.heads=2'),
  ],
)
def test_another_shape_than_marians_is_refused(fields, message):
  for placement in ('pre', 'post'):
    check(pairs.config(**MARIAN, norm_placement=placement))
  with pytest.raises(ValueError) as error:
    check(pairs.config(**MARIAN | fields))
  assert message in str(error.value)


def test_what_cannot_be_measured_is_refused(capsys, tmp_path):
  (tmp_path / 'config.json').write_text(to_json(pairs.config()))
  assert cli.main(['benchmark', 'translation', f'--workdir={tmp_path}']) == 2
  assert "config.model.embedding_scaled=False is not Marian's" in capsys.readouterr().err
  for flag in ('--rounds=0', '--beams=0'):
    assert cli.main(['benchmark', 'translation', f'--workdir={tmp_path}', flag]) == 2
    assert f'{flag} must be at least 1' in capsys.readouterr().err
