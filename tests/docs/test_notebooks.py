"""The notebooks have no outputs, and their cells run in order, at smoke size."""

import json
import pathlib

import pytest

from tests.docs.test_commands import folder, run  # noqa: F401
from tests.paths import ROOT


NOTEBOOKS = sorted((ROOT / 'docs' / 'notebooks').glob('*.ipynb'))
WRITE = '%%writefile '


def cells(path):
  """The texts of the code cells."""
  notebook = json.loads(path.read_text('utf-8'))
  return [''.join(cell['source']) for cell in notebook['cells'] if cell['cell_type'] == 'code']


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
  notebook = json.loads(path.read_text('utf-8'))
  assert (notebook['nbformat'], notebook['nbformat_minor']) == (4, 5)
  assert len({cell['id'] for cell in notebook['cells']}) == len(notebook['cells'])
  for cell in notebook['cells']:
    if cell['cell_type'] == 'code':
      assert cell['outputs'] == [] and cell['execution_count'] is None


@pytest.mark.slow
@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, folder, monkeypatch):  # noqa: F811
  display = type('IPython.display', (), dict(Markdown=str))
  monkeypatch.setitem(__import__('sys').modules, 'IPython.display', display)
  variables = {'__name__': 'notebook'}
  for text in cells(path):
    if text.startswith(WRITE):
      name, _, content = text.removeprefix(WRITE).partition('\n')
      pathlib.Path(name).write_text(content, encoding='utf-8')
    elif text.startswith('!'):
      run(text.removeprefix('!').replace('\\\n', ' '), monkeypatch)
    else:
      exec(compile(text, str(path), 'exec'), variables)


def test_notebooks_are_found():
  assert len(NOTEBOOKS) == 3
