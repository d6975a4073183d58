"""Eight simulated devices, rank promotion as an error, and a compilation cache on disk."""

import collections
import difflib
import gc
import os
import pathlib
import random
import time

import pytest
from absl import flags
from hypothesis import settings


pytest_plugins = ['tfm.conformance.session']  # sets the environment, before anything imports JAX
ROOT = pathlib.Path(__file__).parents[1]
SKIPS = 'tests/skipped.txt'
# Tracing makes millions of small objects; looking for cycles after every 700 took 7 % of the suite's time.
gc.set_threshold(50_000, 20, 100)
# The same examples in every run: a failure comes back, and CI does not depend on luck.
settings.register_profile('tests', derandomize=True, deadline=None, max_examples=60)
settings.load_profile('tests')
if not flags.FLAGS.is_parsed():
  flags.FLAGS.mark_as_parsed()  # Grain reads absl flags


def pytest_addoption(parser):
  parser.addoption('--update-golden', action='store_true', help='rewrite the golden texts')
  parser.addoption(
    '--pin-skips', action='store_true', help=f'fail if other tests than in {SKIPS} are skipped'
  )
  parser.addoption(
    '--minutes', type=float, help='skip what has not begun by then; files run in another order each day'
  )


# Files with few, long tests run first; run last, one of them would leave the other cores idle.
FIRST = (
  'test_learning.py',
  'runs/test_resume.py',
  'test_smoke.py',
  'studies/test_runner.py',
  'training/test_step.py',
  'training/test_vmapped_runs.py',
)


def pytest_collection_modifyitems(config, items):
  place = {ROOT / 'tests' / name: i for i, name in enumerate(FIRST)}
  if config.getoption('--minutes'):
    files = sorted({item.path for item in items})
    random.Random(os.environ['TFM_ROTATION']).shuffle(files)
    place = {path: i for i, path in enumerate(files)}
  items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_configure(config):
  if minutes := config.getoption('--minutes'):
    config.pluginmanager.register(TimeLimit(minutes))


class TimeLimit:
  """Skips the tests that have not begun after some minutes."""

  def __init__(self, minutes):
    self.minutes, self.end = minutes, time.monotonic() + 60 * minutes

  @pytest.hookimpl(tryfirst=True)  # before fixtures are set up
  def pytest_runtest_setup(self):
    if time.monotonic() > self.end:
      pytest.skip(f'{self.minutes:g} minutes were over')


@pytest.hookimpl(tryfirst=True)  # before the summary is printed
def pytest_sessionfinish(session):
  """With --pin-skips: fails if the number of skipped tests differs from the pinned one, by reason up to the
  first colon. A proof that is skipped unnoticed proves nothing. Files of tests/oracle, which `make oracle`
  runs, are not counted: without what they compare with they are skipped before `-m` can leave them out.
  """
  config = session.config
  if not config.getoption('--pin-skips') or hasattr(config, 'workerinput'):
    return
  terminal = config.pluginmanager.get_plugin('terminalreporter')
  reports = terminal.stats.get('skipped', [])
  reports = [report for report in reports if not report.nodeid.startswith('tests/oracle/')]
  reasons = (report.longrepr[2].removeprefix('Skipped: ').partition(':')[0] for report in reports)
  counts = ''.join(f'{count:5d} {reason}\n' for reason, count in sorted(collections.Counter(reasons).items()))
  path = ROOT / SKIPS
  if config.getoption('--update-golden'):
    path.write_text(counts, encoding='utf-8')
  if counts != (pinned := path.read_text(encoding='utf-8')):
    difference = ''.join(difflib.unified_diff(pinned.splitlines(True), counts.splitlines(True), SKIPS, 'now'))
    terminal.write_line(f'\nother tests are skipped than {SKIPS} says:\n{difference}', red=True)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure():
  """Leaves what JAX keeps out of pytest's five searches for cycles at the end, which took eight seconds."""
  gc.freeze()


@pytest.fixture(scope='session')
def root():
  """The repository."""
  return ROOT


@pytest.fixture(scope='session')
def book(tmp_path_factory):
  """A small text file that a tiny model can learn from."""
  path = tmp_path_factory.mktemp('book') / 'book.txt'
  path.write_text('\n\n'.join(f'Verse {i}.\n{VERSE}' for i in range(400)))
  return path


VERSE = (
  'Now is better than never.\nAlthough never is often better than right now.\nSparse is better than dense.\n'
)


@pytest.fixture(scope='session')
def tiny(book):
  """Makes configs of runs that take a second: `tiny(**{'model.layers': 3})` sets fields by dotted path."""
  from tfm.config.overlay import assign, complete
  from tfm.config.resolve import resolve_config

  def make(**fields):
    config = complete(
      dict(
        data=dict(source=f'text({str(book)!r})', length=32),
        model=dict(layers=2, width=32, heads=4),
        optimizer=dict(warmup=2),
        training=dict(steps=6, batch_size=8, log_every=1, evaluate_every=3, evaluation_batches=2),
      )
    )
    for path, value in fields.items():
      assign(config, path, value)
    return resolve_config(config)

  return make


@pytest.fixture(scope='session')
def tiny_run(tiny, tmp_path_factory):
  """The folder of a run of `tiny()`, with checkpoints of steps 3 and 6; a test that changes it copies it."""
  from tfm.runs.train import train

  folder = tmp_path_factory.mktemp('tiny') / 'run'
  train(tiny(), folder)
  return folder
