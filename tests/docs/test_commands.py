"""The commands and the Python of every page run, in their order, at smoke size.

A block that begins with `# needs: …` says what a reader must have, and is not run. A block with a title is a
file, which later blocks of the page use. A command that ends with & runs until the end of its page.
"""

import contextlib
import importlib
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tfm import variant_folders
from tfm.commands import cli
from tfm.config.load import smoke
from tfm.config.schema import default_config, leaves


ROOT = pathlib.Path(__file__).parents[2]
# Pages of studies and plans name the commands that made them, which take from minutes to hours.
PAGES = [
  ROOT / 'README.md',
  *(
    page
    for page in sorted((ROOT / 'docs').rglob('*.md'))
    if not {'studies', 'plans'} & set(page.relative_to(ROOT).parts[:-1])
  ),
]
FENCE = re.compile(r'^( *)```(\w*)(?: title="(.+?)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
LANGUAGES = {'sh', 'python', 'text', 'json', 'bibtex', 'mermaid', 'yaml'}
NEEDS = '# needs: '
EVERY_DAY = pytest.mark.rotated(1)
OTHER = pytest.mark.sampled(0)  # pages beside what a newcomer reads: a seventh of them each day
# What `FILE:smoke` makes smaller, which a command must not make larger again.
SIZES = {
  path for path, value in leaves(smoke(default_config())) if value != dict(leaves(default_config()))[path]
} | {'data.length', 'training.gradient_accumulation', 'training.loss_chunk', 'training.batch_size'}


def blocks(page):
  """(language, title, text) of every fenced block of a page."""
  return [match[1:] for match in (found.groups() for found in FENCE.finditer(page.read_text('utf-8')))]


def is_run(text):
  return not text.startswith(NEEDS)


@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_names_its_language(page):
  fences = re.findall(r'^ *```(.*)$', page.read_text('utf-8'), re.MULTILINE)
  assert len(fences) == 2 * len(blocks(page)), 'a block is not closed, or its first line is unusual'
  assert {language for language, *_ in blocks(page)} <= LANGUAGES
  for language, title, text in blocks(page):
    if language == 'python':
      compile(text, title or str(page), 'exec')


@pytest.fixture
def folder(tmp_path, monkeypatch, book):
  """An empty folder with the repository's configs and a reader's texts."""
  for name in ('configs', 'experiments', 'constraints.txt'):
    (tmp_path / name).symlink_to(ROOT / name)
  text = book.read_text('utf-8')
  (tmp_path / 'plays').mkdir()
  for path in ('plays/one.txt', 'train.txt', 'valid.txt', 'input.txt'):
    (tmp_path / path).write_text(text, encoding='utf-8')
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
  'page',
  [
    pytest.param(
      page, marks=EVERY_DAY if page.name == 'README.md' else [] if page.parent.name == 'tutorials' else OTHER
    )
    for page in PAGES
    if any(language in ('sh', 'python') and is_run(text) for language, _, text in blocks(page))
  ],
  ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_does_what_it_says(page, folder, monkeypatch):
  with contextlib.ExitStack() as background:
    run_page(page, folder, monkeypatch, background)


def run_page(page, folder, monkeypatch, background):
  variables = {'__name__': 'page'}
  for language, title, text in blocks(page):
    if not is_run(text):
      continue
    if title:
      (folder / title).parent.mkdir(parents=True, exist_ok=True)
      (folder / title).write_text(text, encoding='utf-8')
    elif language == 'python':
      exec(compile(text, str(page), 'exec'), variables)
    elif language == 'sh':
      for line in text.replace('\\\n', ' ').splitlines():
        if line.endswith('&'):
          background.enter_context(running(line.removesuffix('&')))
        else:
          run(line, monkeypatch)


@contextlib.contextmanager
def running(line):
  """A block in which a command of `tfm` runs that prints a line when it is ready, and ends on SIGTERM."""
  command = [sys.executable, '-m', *shlex.split(line, comments=True)]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding='utf-8')
  try:
    assert process.stdout.readline(), line
    yield
    process.terminate()
    assert process.wait(60) == 0, line
  finally:
    process.kill()
    process.communicate()


def forget_variant_folders(monkeypatch):
  """Folders that one command names are not known to the next, as in a new process."""
  monkeypatch.setattr(variant_folders, '_origins', {})
  variant_folders._add_configured_folders.cache_clear()
  for slot in variant_folders.slot_folders():
    package = importlib.import_module(f'tfm.{slot.replace("/", ".")}')
    monkeypatch.setattr(package, '__path__', package.__path__[:1])


def run(line, monkeypatch):
  """Runs a command of `tfm` in this process."""
  forget_variant_folders(monkeypatch)
  words = shlex.split(line, comments=True)
  while words and re.fullmatch(r'[A-Z_]+=.*', words[0]):
    name, _, value = words.pop(0).partition('=')
    if name != 'XLA_FLAGS':  # the tests have eight devices in any case
      monkeypatch.setenv(name, value)
  if words:
    assert words[0].removeprefix('.venv/bin/') == 'tfm', f'{line!r}: only tfm is run; or say what it needs'
    status = cli.main(shrink(words[1:]))
    assert status == 0, line


def shrink(words):
  """The command line at smoke size."""
  shrunk = []
  for word in words:
    field = re.match(r'--config\.([\w.]+)=', word)
    if field and field[1] in SIZES:
      continue
    if word.startswith('--config=') and not word.endswith(('.json', 'smoke')):
      word += ',smoke' if ':' in word else ':smoke'
    shrunk.append(word)
  return shrunk
