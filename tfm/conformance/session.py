"""How pytest runs the suite: on eight simulated devices, on samples of large grids or on one variant.

A plugin of pytest, whose import sets the environment: it must come before that of JAX.
"""

import collections
import datetime
import importlib.metadata
import itertools
import os
import pathlib
import re
import subprocess
import zlib

import pytest

from tfm import variant_folders


ROOT = pathlib.Path(__file__).parents[2]
IS_CLONE = (ROOT / 'tests' / 'conftest.py').is_file()
MARKERS = (
  'slow: a heavier proof, run by `make test-slow` and `tfm check`',
  'sampled(n): n of its cases run by default, of the others a seventh each day as slow, all exhaustively',
  'rotated(n): a slow test that runs every nth day in `make test-slow`; three unless marked otherwise',
  "exhaustive: a case that is not in today's sample, run by `make test-all`",
)
FINISHED_TESTS = itertools.count(1)
# With --variant, what the other cases build on: a mistake that fails here fails them too, and is said once.
STAGES = 'test_examples.py', 'test_masks.py', 'test_scores.py', 'test_causality.py'


def cache_directory() -> pathlib.Path:
  """Where compiled programs and prepared data of tests are kept: in a clone, or in the cache of tfm."""
  return ROOT / '.cache' if IS_CLONE else pathlib.Path('~/.cache/tfm/check').expanduser()


def set_environment() -> None:
  """Sets JAX's and tfm's variables; what the caller's shell sets must not decide what the tests do."""
  for name in [name for name in os.environ if name.startswith(('JAX_', 'TFM_')) and name != 'TFM_ROTATION']:
    del os.environ[name]
  # For tiny arrays optimising takes longer than computing, and compiling in parallel does not pay.
  flags = ['--xla_backend_optimization_level=0', '--xla_cpu_parallel_codegen_split_count=1']
  if importlib.metadata.version('jaxlib').startswith('0.10.'):
    # XLA's older emitters compile the same operations in less than half the time. jaxlib 0.11 removed them,
    # and an unknown flag aborts the process.
    flags.append('--xla_cpu_use_fusion_emitters=false')
  os.environ.update(
    XLA_FLAGS=' '.join(['--xla_force_host_platform_device_count=8', *flags]),
    JAX_PLATFORMS='cpu',
    JAX_NUMPY_RANK_PROMOTION='raise',
    JAX_TRACEBACK_FILTERING='tracebackhide',  # pytest leaves such frames out
    JAX_COMPILATION_CACHE_DIR=str(cache_directory() / 'jax'),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
    TFM_CACHE=str(cache_directory() / 'tfm'),
  )
  # Which cases run today (`sample_cases`, `collect.product`); processes started here inherit it.
  os.environ.setdefault('TFM_ROTATION', datetime.date.today().strftime('%G-%V-%u'))


set_environment()


def pytest_addoption(parser):
  folders = 'a folder with variants outside the package; may be repeated'
  parser.addoption('--variants', action='append', default=[], metavar='FOLDER', help=folders)
  parser.addoption('--variant', metavar='NAME', help='run only what tries the variant of this name')


def pytest_configure(config):
  for marker in MARKERS:
    config.addinivalue_line('markers', marker)
  for folder in config.getoption('--variants'):
    variant_folders.add_folder(folder, '--variants=')


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config, items):
  if name := config.getoption('--variant'):
    deselected = [item for item in items if not tries(item, name)]
    items[:] = sorted((item for item in items if tries(item, name)), key=stage)
    config.hook.pytest_deselected(items=deselected)
  else:
    sample_cases(items)


def tries(item: pytest.Item, name: str) -> bool:
  """Whether a case has a parameter that is, or names in a spec, a variant."""
  parameters = item.callspec.params.values() if hasattr(item, 'callspec') else ()
  return any(name in re.findall(r'\w+', value) for value in parameters if isinstance(value, str))


def stage(item: pytest.Item) -> int:
  """The place of a case's file in `STAGES`; all others come last."""
  return [*STAGES, item.path.name].index(item.path.name)


def sample_cases(items: list[pytest.Item]) -> None:
  """Of the cases of a test marked `sampled(n)`, `make test` runs n, spread evenly over those that are not
  marked slow, and all that name a changed variant; `make test-slow` runs a seventh of the others, another one
  each day of the week, and the n of a test that is slow itself; `make test-all` all.
  """
  grids = collections.defaultdict(list)
  for item in items:
    if item.get_closest_marker('sampled'):
      grids[item.nodeid.partition('[')[0]].append(item)
  week, day = map(int, os.environ['TFM_ROTATION'].split('-')[1:])
  changed = changed_modules()
  for cases in grids.values():
    quick = [case for case in cases if not case.get_closest_marker('slow')] or cases
    number = min(cases[0].get_closest_marker('sampled').args[0], len(quick))
    chosen = {quick[i * len(quick) // number] for i in range(number)}
    chosen |= {case for case in cases if changed & set(re.findall(r'\w+', case.name))}
    for i, case in enumerate(case for case in cases if case not in chosen):
      case.add_marker('slow' if i % 7 == day % 7 else 'exhaustive')
  rotate_tests(items, 7 * week + day)


def rotate_tests(items: list[pytest.Item], day: int) -> None:
  """Of the slow tests of a file every third runs, others today than tomorrow, and from another one on in each
  file; every nth where `rotated(n)` says so. Sampled ones are fewer already.
  """
  files = collections.defaultdict(list)
  for item in items:
    if item.get_closest_marker('slow') and not item.get_closest_marker('sampled'):
      files[item.path].append(item)
  for path, tests in files.items():
    for i, item in enumerate(tests, zlib.crc32(path.name.encode())):
      rotated = item.get_closest_marker('rotated')
      if (i + day) % (rotated.args[0] if rotated else 3):
        item.add_marker('exhaustive')


def changed_modules() -> set[str]:
  """The names of the package's modules that differ from the last commit, or that it does not have."""
  command = 'git status --porcelain --untracked-files=all tfm'.split()
  try:
    status = subprocess.run(command, cwd=ROOT, capture_output=True, encoding='utf-8').stdout
  except FileNotFoundError:  # no git
    return set()
  return {pathlib.Path(line.split()[-1]).stem for line in status.splitlines()}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
  """With --variant, shows only the lines of its file where an exception passed through it."""
  if call.excinfo and (name := item.config.getoption('--variant')):
    own = call.excinfo.traceback.filter(lambda entry: entry.path.stem == name)
    call.excinfo.traceback = own or call.excinfo.traceback


def pytest_runtest_teardown(item, nextitem):
  """With --variant, ends the run after a stage that failed. Also frees compiled programs before the process
  reaches the limit on memory maps (Linux: 65,530).
  """
  import jax

  session = item.session
  if (
    item.config.getoption('--variant') and nextitem and stage(nextitem) > stage(item) and session.testsfailed
  ):
    rest = len(session.items) - session.items.index(nextitem)
    session.shouldfail = f'{rest} more cases build on these; they run once these pass'
  if next(FINISHED_TESTS) % 25 == 0 and count_memory_maps() > 30_000:
    jax.clear_caches()


def count_memory_maps() -> int:
  """The number of memory maps of this process; 0 where the system does not list them."""
  maps = pathlib.Path('/proc/self/maps')
  return len(maps.read_text(encoding='utf-8').splitlines()) if maps.exists() else 0
