"""The generated pages are those of the code."""

import importlib.util

import pytest


@pytest.fixture(scope='module')
def generate(root):
  spec = importlib.util.spec_from_file_location('generate', root / 'docs' / 'generate.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.slow
def test_the_generated_pages_are_current(generate, root):
  for path, text in generate.pages().items():
    assert (root / 'docs' / path).read_text(encoding='utf-8') == text, (
      f'{path} is old; renew it: make reference'
    )


def test_no_word_of_a_command_is_lost(generate):
  page = generate.format_commands()
  assert '`--config FILE[:args]` | ' in page and '### tfm benchmark attention' in page
  assert 'tfm train --config=configs/lm.py --workdir=runs/lm' in page
