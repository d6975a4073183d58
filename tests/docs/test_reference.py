"""The generated pages are those of the code."""

import importlib.util
import re

import pytest


@pytest.fixture(scope='module')
def generate(root):
  spec = importlib.util.spec_from_file_location('generate', root / 'docs' / 'generate.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.slow
def test_the_generated_pages_are_current(generate, root):
  pages = generate.pages()
  missing = lines(pages['reference/variants.md']) - lines(read(root, 'reference/variants.md'))
  for path, text in pages.items():
    old = lines(read(root, path)) - lines(text)
    assert not old, f'{path} is old; renew it: make reference\n' + '\n'.join(sorted(old))
    if path != 'reference/variants.md':
      assert read(root, path) == text, f'{path} is old; renew it: make reference'
  # A variant is one file: what was just added needs no edit of a page: the site has its row, and
  # the page once it is renewed.
  for line in missing:
    assert line.startswith('|'), f'reference/variants.md lacks {line!r}; renew it: make reference'


def read(root, path):
  return (root / 'docs' / path).read_text(encoding='utf-8')


def lines(text):
  """The lines of a page, however wide the columns of its tables are."""
  return {re.sub(r' +|-{3,}', ' ', line) for line in text.splitlines()}


def test_no_word_of_a_command_is_lost(generate):
  page = generate.format_commands()
  assert '`--config FILE[:args]` | ' in page and '### tfm benchmark attention' in page
  assert 'tfm train --config=configs/lm.py --workdir=runs/lm' in page
  assert '(default: data,' in page and '%(' not in page
  assert '`--variants=FOLDER`' in page
