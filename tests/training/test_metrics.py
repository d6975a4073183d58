"""The curves of a run."""

import json
import warnings

import pytest

from tfm.training import metrics


@pytest.mark.parametrize(
  'rows', [[], [dict(step=1, split='train', loss=2.0)]], ids=['diverged at once', 'one step']
)
def test_curves_are_drawn_without_a_warning(tmp_path, rows):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert metrics.draw_curves(path).is_file()
