"""The benchmark of beam search from end to end, on a run in miniature; no time is judged here."""

import re

import pytest


pytestmark = pytest.mark.oracle
pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

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
