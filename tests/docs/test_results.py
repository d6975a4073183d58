"""The front pages say what the pages of results say: each of their numbers is on a linked page, or rounds one
that is.
"""

import decimal
import re

import pytest


NUMBER = re.compile(r'(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w])')


def numbers(text: str) -> list[decimal.Decimal]:
  """All numbers of a text, without the commas of thousands and of sentences."""
  return [decimal.Decimal(number.replace(',', '')) for number in NUMBER.findall(text)]


def is_found(number: decimal.Decimal, page: list[decimal.Decimal]) -> bool:
  """Whether the page has the number, or one of more digits that rounds to it."""
  return any(other.quantize(number) == number for other in page)


def statements(text: str) -> list[tuple[str, list[str]]]:
  """The lines that link pages, without their links, and those pages."""
  lines = [(line, re.findall(r'\]\(([\w/.-]+\.md)', line)) for line in text.splitlines()]
  return [(re.sub(r'\[[^]]*\]\([^)]*\)|`[^`]*`', '', line), pages) for line, pages in lines if pages]


@pytest.mark.parametrize(
  'front, section', [('README.md', '## Five results'), ('docs/results/index.md', '| study')]
)
def test_the_numbers_of_a_front_page_are_those_of_the_pages_that_it_links(root, front, section):
  text = (root / front).read_text(encoding='utf-8').partition(section)[2].partition('\n## ')[0]
  found = statements(text)
  assert len(found) > 4
  for line, pages in found:
    known = [x for page in pages for x in numbers(((root / front).parent / page).read_text(encoding='utf-8'))]
    missing = [str(x) for x in numbers(line) if x.as_tuple().exponent and not is_found(x, known)]
    assert not missing, f'{missing} on no page that this line links: {line}'


def test_a_number_that_no_page_has_is_found_missing():
  page = numbers('by 0.168 [0.1, 0.2], p < 0.001; 2,400 steps')
  assert page == [decimal.Decimal(x) for x in ('0.168', '0.1', '0.2', '0.001', '2400')]
  assert is_found(decimal.Decimal('0.17'), page)
  assert not is_found(decimal.Decimal('0.169'), page)
  assert not is_found(decimal.Decimal('0.1681'), page)
