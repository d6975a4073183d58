"""Benchmarks beside PyTorch: beam search from end to end, on a run in miniature; both sides of the others.

No time is judged here.
"""

import re

import pytest


pytestmark = pytest.mark.oracle
pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

from tfm.benchmark import encoder_decoder, encoder_decoder_torch, gpt2_torch  # noqa: E402
from tfm.commands import cli  # noqa: E402


def test_translation(tmp_path, root, capsys):
  assert (
    cli.main(
      [
        'train',
        f'--config={root}/configs/multi30k.py:smoke',
        f'--workdir={tmp_path}',
        "--config.data.source=numbers('en', 'de', pairs=300)",
        '--config.data.tokenizer=bytes',
      ]
    )
    == 0
  )
  capsys.readouterr()
  assert (
    cli.main(
      ['benchmark', 'translation', f'--workdir={tmp_path}', '--split=validation', '--beams=2', '--rounds=1']
    )
    == 0
  )
  assert re.search(r'speed ratio: \d+\.\d\d; \d+ of 15 translations are equal', capsys.readouterr().out)


@pytest.mark.parametrize('name', encoder_decoder.CONFIGS)
def test_encoder_decoders_are_the_same_on_both_sides(name, monkeypatch):
  """What the published class makes of its config.json is what tfm makes of it, and it trains."""
  from tfm.hf.from_config import config_from_hf, load_families

  published = encoder_decoder_torch.make_model(name).config.to_dict()
  family = load_families()[name]
  assert config_from_hf(family, published) == config_from_hf(family, encoder_decoder.CONFIGS[name])
  monkeypatch.setattr(encoder_decoder_torch, 'TRAINING_SECONDS', 0.0)
  assert encoder_decoder_torch.main(name) > 0


def test_gpt2_trains_and_decodes_in_pytorch(monkeypatch):
  monkeypatch.setattr(gpt2_torch, 'TRAINING_SECONDS', 0.0)
  for name, size in dict(layers=1, width=16, heads=2, length=16, vocab=32).items():
    monkeypatch.setitem(gpt2_torch.SHAPE, name, size)
  for name, size in dict(prompt=4, new=8, rounds=1).items():
    monkeypatch.setitem(gpt2_torch.DECODING, name, size)
  assert gpt2_torch.measure_training(2) > 0
  assert gpt2_torch.measure_decoding(1, 1) > 0 and gpt2_torch.measure_decoding(1, 4) > 0
