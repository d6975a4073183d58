"""One version everywhere, and a tag only on what the changelog calls released."""

import re
import subprocess

import yaml

import tfm


def headings(root):
  """(version, whether it is released) of every section of the changelog, the newest first."""
  text = (root / 'CHANGELOG.md').read_text(encoding='utf-8')
  lines = re.findall(r'^## (.*)$', text, re.MULTILINE)
  matches = [re.fullmatch(r'(\d+\.\d+\.\d+) \((not released|\d{4}-\d\d-\d\d)\)', line) for line in lines]
  assert all(matches), (
    f'a section of CHANGELOG.md is "X.Y.Z (not released)" or "X.Y.Z (YEAR-MONTH-DAY)": {lines}'
  )
  return [(match[1], match[2] != 'not released') for match in matches]


def test_package_changelog_and_citation_have_one_version(root):
  (newest, _), *older = headings(root)
  citation = yaml.safe_load((root / 'CITATION.cff').read_text(encoding='utf-8'))
  assert newest == citation['version'] == tfm.__version__
  assert all(released for _, released in older), 'only the newest version may be "not released"'
  versions = [tuple(map(int, version.split('.'))) for version, _ in headings(root)]
  assert versions == sorted(versions, reverse=True)


def test_a_tag_is_a_released_version(root):
  """The commit of a tag vX.Y.Z has that version, with a date in the changelog."""
  command = ['git', 'tag', '--points-at=HEAD', '--list', 'v*']
  tags = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.split()
  version, released = headings(root)[0]
  assert tags in ([], [f'v{version}']) and (released or not tags), tags


def test_pictures_of_the_readme_are_files_of_the_repository(root):
  """No badge of another host, which may say what it likes."""
  text = (root / 'README.md').read_text(encoding='utf-8')
  pictures = re.findall(r'!\[[^\]]*\]\(([^)]+)\)', text)
  assert 'docs/badges.svg' in pictures and '<img' not in text
  assert all((root / picture).is_file() for picture in pictures), pictures
