"""Eight simulated devices, rank promotion as an error, and a compilation cache on disk."""

import collections
import datetime
import difflib
import gc
import importlib.metadata
import itertools
import os
import pathlib
import re
import subprocess


# Set before jax is imported anywhere; what the caller's shell sets must not decide what the tests do.
for name in [name for name in os.environ if name.startswith(('JAX_', 'TFM_')) and name != 'TFM_ROTATION']:
  del os.environ[name]
os.environ['JAX_PLATFORMS'] = 'cpu'
# For tiny arrays optimising takes longer than computing, and compiling in parallel does not pay.
FAST_COMPILATION = '--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1'
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  # XLA's older emitters compile the same operations in less than half the time. jaxlib 0.11 removed them,
  # and an unknown flag aborts the process.
  FAST_COMPILATION += ' --xla_cpu_use_fusion_emitters=false'
os.environ['XLA_FLAGS'] = f'--xla_force_host_platform_device_count=8 {FAST_COMPILATION}'
ROOT = pathlib.Path(__file__).parent.parent
SKIPS = 'tests/skipped.txt'
os.environ['JAX_COMPILATION_CACHE_DIR'] = str(ROOT / '.cache' / 'jax')
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
# Which cases run today (`sample_cases`, tests/conformance/collect.py); processes started here inherit it.
os.environ.setdefault('TFM_ROTATION', datetime.date.today().strftime('%G-%V-%u'))
os.environ['TFM_CACHE'] = str(ROOT / '.cache' / 'tfm')

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402
from hypothesis import settings  # noqa: E402


jax.config.update('jax_numpy_rank_promotion', 'raise')
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


# Files with few, long tests run first; run last, one of them would leave the other cores idle.
FIRST = (
  'test_learning.py',
  'runs/test_resume.py',
  'test_smoke.py',
  'studies/test_runner.py',
  'training/test_step.py',
  'training/test_vmapped_runs.py',
)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
  place = {ROOT / 'tests' / name: i for i, name in enumerate(FIRST)}
  items.sort(key=lambda item: place.get(item.path, len(FIRST)))
  sample_cases(items)


def sample_cases(items):
  """Of the cases of a test marked `sampled(n)`, `make test` runs n, spread evenly over those that are not
  marked slow, and all that name a changed variant; `make test-slow` runs a seventh of the others, another one
  each day of the week; `make test-all` all.
  """
  grids = collections.defaultdict(list)
  for item in items:
    if item.get_closest_marker('sampled'):
      grids[item.nodeid.partition('[')[0]].append(item)
  day, changed = int(os.environ['TFM_ROTATION'].rpartition('-')[2]), changed_modules()
  for cases in grids.values():
    quick = [case for case in cases if not case.get_closest_marker('slow')]
    number = min(cases[0].get_closest_marker('sampled').args[0], len(quick))
    chosen = {quick[i * len(quick) // number] for i in range(number)}
    chosen |= {case for case in cases if changed & set(re.findall(r'\w+', case.name))}
    for i, case in enumerate(case for case in cases if case not in chosen):
      case.add_marker('slow' if i % 7 == day % 7 else 'exhaustive')


def changed_modules():
  """The names of the package's modules that differ from the last commit, or that it does not have."""
  command = 'git status --porcelain --untracked-files=all tfm'.split()
  try:
    status = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
  except FileNotFoundError:  # no git
    return set()
  return {pathlib.Path(line.split()[-1]).stem for line in status.splitlines()}


def pytest_runtest_teardown(item, nextitem):
  """Frees compiled programs before the process reaches the limit on memory maps (Linux: 65,530)."""
  maps = pathlib.Path('/proc/self/maps')
  if next(FINISHED_TESTS) % 25 == 0 and maps.exists() and len(maps.read_text().splitlines()) > 30_000:
    jax.clear_caches()


FINISHED_TESTS = itertools.count(1)


@pytest.hookimpl(tryfirst=True)  # before the summary is printed
def pytest_sessionfinish(session):
  """With --pin-skips: fails if the number of skipped tests differs from the pinned one, by reason up to the
  first colon. A proof that is skipped unnoticed proves nothing.
  """
  config = session.config
  if not config.getoption('--pin-skips') or hasattr(config, 'workerinput'):
    return
  terminal = config.pluginmanager.get_plugin('terminalreporter')
  reports = terminal.stats.get('skipped', [])
  reasons = (report.longrepr[2].removeprefix('Skipped: ').partition(':')[0] for report in reports)
  counts = ''.join(f'{count:5d} {reason}\n' for reason, count in sorted(collections.Counter(reasons).items()))
  path = ROOT / SKIPS
  if config.getoption('--update-golden'):
    path.write_text(counts, encoding='utf-8')
  if counts != (pinned := path.read_text(encoding='utf-8')):
    difference = ''.join(difflib.unified_diff(pinned.splitlines(True), counts.splitlines(True), SKIPS, 'now'))
    terminal.write_line(f'\nother tests are skipped than {SKIPS} says:\n{difference}', red=True)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
