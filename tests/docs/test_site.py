"""What the site's search finds: every page's text, and every word of the project's glossary."""

import html
import json
import re
import subprocess
import sys

import pytest

from tests.paths import SHARED


pytest.importorskip('mkdocstrings', reason="the site needs: pip install -e '.[docs]'")


@pytest.fixture(scope='module')
def searched(root, tmp_path_factory):
  """All that the site's search looks through."""
  site = tmp_path_factory.mktemp('site')
  subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--quiet', f'--site-dir={site}'], cwd=root, check=True
  )
  index = json.loads((site / 'search' / 'search_index.json').read_text(encoding='utf-8'))
  text = ' '.join(f'{entry["title"]} {entry["text"]}' for entry in index['docs'])
  return ' '.join(html.unescape(re.sub(r'<[^>]+>', '', text)).split())


def terms(text):
  """The field's terms in italics, and the names on the right of the table of names."""
  head, _, rest = text.partition('## Names')
  rows = [line for line in rest.partition('## Sentences')[0].splitlines() if line.count('|') == 3]
  names = [name for row in rows for name in re.findall(r'`([^`]+)`', row.split('|')[2])]
  return re.findall(r'\*([a-z ]+)\*', head) + names


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason='there is no folder ../shared')
def test_search_finds_every_word_of_the_glossary(searched):
  found = terms((SHARED / 'glossary.md').read_text(encoding='utf-8'))
  assert len(found) > 40
  # Files are modules on the site.
  missing = [term for term in found if term.rstrip('/').replace('/', '.') not in searched]
  assert set(missing) <= RENAMED, missing


# One is analysis.variant_catalogue by now; the other is gone.
RENAMED = {'analysis/catalogue', 'merge_pretrained'}


@pytest.mark.slow
def test_search_finds_every_protocol(searched):
  for name in ('Mixer', 'supports_packing', 'Position', 'max_positions', 'from_pretrained'):
    assert name in searched, name
