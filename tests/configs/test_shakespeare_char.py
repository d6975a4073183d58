"""The character model on a text of one's own: it trains on all but the last tenth, and has no test split."""

import json
import random

import pytest

from tfm.commands import cli


@pytest.mark.slow
def test_a_text_in_the_current_folder_is_trained_on(tmp_path, monkeypatch, capsys, root):
  draw, alphabet = random.Random(0), 'abcdefgh \n'
  text = ''.join(draw.choices(alphabet, k=20_000)) + alphabet
  (tmp_path / 'input.txt').write_text(text)
  monkeypatch.chdir(tmp_path)
  config = f'--config={root}/configs/shakespeare_char.py:cpu,smoke'
  assert cli.main(['train', config, '--workdir=run']) == 0
  log = (tmp_path / 'run' / 'log.txt').read_text(encoding='utf-8')
  assert f' documents, {int(len(text) * 0.9):,} bytes; validation' in log and 'vocabulary 11' in log
  capsys.readouterr()
  assert cli.main(['evaluate', '--workdir=run']) == 0
  result = json.loads(capsys.readouterr().out)
  assert result['tokens'] == len(text) - int(len(text) * 0.9) + 1  # and the end of the text
  assert 2.2 < result['loss'] < 2.6  # about ln 11 after four steps: no token is of another vocabulary
  assert cli.main(['evaluate', '--workdir=run', '--split=test']) == 2
  assert "has no split 'test'; known: train, validation" in capsys.readouterr().err
  assert cli.main(['generate', '--workdir=run', '--prompt=a猫']) == 2
  assert "the character '猫' is not among the 10 of the training split" in capsys.readouterr().err
