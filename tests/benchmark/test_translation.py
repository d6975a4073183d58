"""The translation benchmark: order, ratios, invalid input; tests/oracle compares the models."""

import importlib.util

import pytest

from tests.models import pairs
from tfm.benchmark import compare_translation
from tfm.benchmark.translation_torch import validate_marian_shape
from tfm.commands import cli
from tfm.config.load import to_json


MARIAN = dict(position='sinusoidal', feed_forward='relu', scale_embeddings=True)


def test_measurements_alternate_and_ratios_are_of_medians(monkeypatch, capsys, tmp_path):
  (tmp_path / 'config.json').write_text(to_json(pairs.config(**MARIAN)))
  calls, seconds = [], iter([1.0, 3.0, 9.0, 4.0, 2.0, 90.0])

  def measure(module, *args):
    calls.append((module.rpartition('.')[2], *args))
    return dict(seconds=next(seconds), bleu=41.0, texts=['ein hund', 'zwei' if 'torch' in module else 'drei'])

  monkeypatch.setattr(compare_translation, 'measure', measure)
  found = importlib.util.find_spec
  monkeypatch.setattr(
    compare_translation.importlib.util,
    'find_spec',
    lambda name: found(name) or name in ('torch', 'transformers'),
  )
  monkeypatch.setattr(compare_translation, 'describe_machine', lambda: 'here')
  assert cli.main(['benchmark', 'translation', f'--workdir={tmp_path}']) == 0
  assert calls == [(name, str(tmp_path), 'test', '4') for name in ('translation', 'translation_torch')] * 3
  out = capsys.readouterr().out
  assert ['PyTorch', '2', '4.00', '0.5', '41.00'] in [line.split() for line in out.splitlines()]
  assert 'speed ratio: 2.00; 1 of 2 translations are equal' in out


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      dict(position='rope'),
      "config.model.position='rope' is not Marian's; benchmark a run with 'sinusoidal'",
    ),
    (dict(kv_heads=2), 'config.model.kv_heads=2'),
    (dict(norm_placement='sandwich'), "config.model.norm_placement='sandwich'"),
    (dict(encoder=dict(norm_placement='post')), "config.model.encoder.norm_placement='post'"),
    (dict(bias=False), 'config.model.bias=False'),
    (dict(tie_embeddings=False), 'config.model.tie_embeddings=False'),
    (dict(embedding_width=8), 'config.model.embedding_width=8'),
    (dict(output_soft_cap=5.0), 'config.model.output_soft_cap=5.0'),
    (dict(encoder=dict(position='none')), "config.model.encoder.position='none'"),
    (dict(cross=dict(heads=2)), 'config.model.cross.heads=2'),
  ],
)
def test_models_unlike_marian_are_rejected(fields, message):
  for placement in ('pre', 'post'):
    validate_marian_shape(pairs.config(**MARIAN, norm_placement=placement))
  with pytest.raises(ValueError) as error:
    validate_marian_shape(pairs.config(**MARIAN | fields))
  assert message in str(error.value)


def test_invalid_runs_and_arguments_are_rejected(capsys, tmp_path):
  (tmp_path / 'config.json').write_text(to_json(pairs.config(**MARIAN | dict(scale_embeddings=False))))
  assert cli.main(['benchmark', 'translation', f'--workdir={tmp_path}']) == 2
  assert "config.model.scale_embeddings=False is not Marian's" in capsys.readouterr().err
  for flag in ('--rounds=0', '--beams=0'):
    assert cli.main(['benchmark', 'translation', f'--workdir={tmp_path}', flag]) == 2
    assert f'{flag} must be at least 1' in capsys.readouterr().err
