"""A base installation: what it lacks is imported where an extra is named, and a sentence names that extra."""

import ast
import configparser
import importlib.metadata
import json
import re
import sys

import pytest

import tfm
from tests.bare_process import run_bare
from tfm.errors import MissingExtra, importing_extra
from tfm.training import metrics


# Packages with a guard of their own, and the only folder or file that imports each.
GUARDED = {
  'pytest': 'conformance/',
  'tokamax': 'kernels/tokamax.py',
  'fla': 'benchmark/device/mixers_fla.py',
  'torch': 'benchmark/',
  'transformers': 'benchmark/',
}
# Distributions that need not be installed here, and have another name than their package.
DISTRIBUTIONS = {'mlflow': ['mlflow-skinny']}
# Extras for programs that show metrics, with dozens of dependencies: [all] leaves them out.
SINKS = 'mlflow', 'trackio', 'wandb'


@pytest.fixture(scope='module')
def requirements(root):
  """Extra, or '' for the base, → normalized names of the distributions that it installs."""
  parser = configparser.ConfigParser()
  parser.read(root / 'setup.cfg', encoding='utf-8')
  texts = {'': parser['options']['install_requires'], **parser['options.extras_require']}

  def names(extra):
    for line in texts[extra].split('\n'):
      if nested := re.match(r'tfm\[(.*)\]', line):
        for name in nested[1].split(','):
          yield from names(name)
      elif line and not line.startswith('#'):
        yield normalize(re.match(r'[\w.-]+', line)[0])

  return {extra: set(names(extra)) for extra in texts}


def normalize(name):
  return re.sub(r'[-_.]+', '-', name).lower()


def third_party_imports(file):
  """(top-level package, extra of the surrounding block or None) of every import of a file."""

  def walk(node, extra):
    if isinstance(node, ast.With):
      calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
      extra = next((c.args[0].value for c in calls if ast.unparse(c.func) == 'importing_extra'), extra)
    if isinstance(node, ast.Import):
      yield from ((alias.name.partition('.')[0], extra) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      yield node.module.partition('.')[0], extra
    for child in ast.iter_child_nodes(node):
      yield from walk(child, extra)

  for package, extra in walk(ast.parse(file.read_text(encoding='utf-8')), None):
    if package != 'tfm' and package not in sys.stdlib_module_names:
      yield package, extra


def test_every_import_is_of_the_base_or_names_its_extra(root, requirements):
  distributions = DISTRIBUTIONS | importlib.metadata.packages_distributions()
  seen, wrong = set(), []
  for file in sorted((root / 'tfm').rglob('*.py')):
    place = str(file.relative_to(root / 'tfm'))
    for package, extra in third_party_imports(file):
      if place.startswith(GUARDED.get(package, ' ')):
        continue
      seen.add(extra)
      if requirements[extra or ''].isdisjoint(map(normalize, distributions.get(package, [package]))):
        wrong.append(f'{place} imports {package}, which is not in the extra {extra!r} (None: the base)')
  assert not wrong, '\n'.join(wrong)
  # Every extra whose packages tfm itself imports.
  assert seen - {None} == {
    'ablation',
    'arrow',
    'beam',
    'check',
    'hub',
    'images',
    'lm-eval',
    'onnx',
    'plots',
    'quantization',
    'serve',
    'stablehlo',
    'tensorboard',
    'translation',
    *SINKS,
  }


def test_all_holds_every_extra_that_tfm_imports(requirements):
  own = (
    'ablation',
    'arrow',
    'check',
    'hub',
    'images',
    'plots',
    'quantization',
    'serve',
    'stablehlo',
    'tensorboard',
    'translation',
  )
  assert requirements['all'] == set().union(*(requirements[extra] for extra in own))
  assert requirements['all'] <= requirements['test']
  assert not any(requirements[extra] & requirements[''] for extra in own)


def test_a_missing_package_names_its_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'sacremoses', None)
  with pytest.raises(MissingExtra) as caught, importing_extra('translation'):
    import sacremoses  # noqa: F401
  assert str(caught.value) == "sacremoses is not installed; run in the clone: pip install -e '.[translation]'"
  assert isinstance(caught.value, ImportError) and isinstance(caught.value, ValueError)


# Runs commands as in a base installation: no package of an extra can be imported but scipy, which JAX needs.
BASE = """
import contextlib, io, json, sys
packages, *commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(packages))
from tfm.commands import cli
results = []
for command in commands:
  out = io.StringIO()
  with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
    status = cli.main(command)
  results.append((status, out.getvalue()))
print(json.dumps(results))
"""
OPTIONAL = (
  'PIL babel fastapi huggingface_hub jinja2 matplotlib num2words pandas prometheus_client pyarrow pydantic'
  ' pytest rouge_score sacrebleu sacremoses safetensors sklearn starlette statsmodels tensorboardX tokenizers'
  ' uvicorn'
).split()


def run_in_base(tmp_path, *commands):
  """[(status, output)] of commands without the packages of the extras."""
  process = run_bare(tmp_path, BASE, json.dumps([OPTIONAL, *commands]))
  return json.loads(process.stdout.splitlines()[-1])


SENTENCES = {
  'arrow': (
    ['inspect', '--config=lm', '--config.data.source=arrow("x")'],
    r'tfm inspect: config.data.source=.arrow\("x"\).: {} is not installed',
  ),
  'ablation': (['ablate', 'position:demo', '--workdir=x', '--dry_run'], 'tfm ablate: {} is not installed'),
  'check': (['check', 'mine.py'], 'tfm check: {} is not installed'),
  'hub': (
    ['inspect', '--config=lm', '--config.data.tokenizer=published("x")'],
    r'tfm inspect: config.data.tokenizer=.published\("x"\).: {} is not installed',
  ),
  'images': (
    ['inspect', '--config=vit:digits'],
    "tfm inspect: config.data.source='digits': {} is not installed",
  ),
  'plots': (['inspect', 'causal', '--to=mask.png'], 'tfm inspect: {} is not installed'),
  'serve': (['board', '.'], 'tfm board: {} is not installed'),
  'tensorboard': (
    ['train', '--config=lm:smoke', '--workdir=x', '--config.training.sinks=tensorboard'],
    "tfm train: config.training.sinks='tensorboard': {} is not installed",
  ),
  'translation': (
    ['inspect', '--config=numbers'],
    'tfm inspect: config.data.source="numbers.*": {} is not installed',
  ),
}


@pytest.mark.slow
def test_without_an_extra_a_sentence_names_it(tmp_path):
  extras, commands = zip(*((extra, command) for extra, (command, _) in SENTENCES.items()))
  for extra, (status, text) in zip(extras, run_in_base(tmp_path, *commands), strict=True):
    remedy = rf"; run in the clone: pip install -e '\.\[{extra}\]'\n"
    sentence = SENTENCES[extra][1].format('[A-Za-z0-9_.]+') + remedy
    assert status == 2 and re.fullmatch(sentence, text), (extra, text)


def test_help_on_the_package_in_a_base_installation(tmp_path):
  hide = f'import sys; sys.modules.update(dict.fromkeys({OPTIONAL}))'
  code = f'{hide}\nimport pydoc, tfm; print(pydoc.plain(pydoc.render_doc(tfm)))'
  process = run_bare(tmp_path, code)
  functions = process.stdout.partition('\nFUNCTIONS\n')[2]
  assert all(re.search(rf'^    {name}\(', functions, re.MULTILINE) for name in tfm.__all__[1:]), (
    process.stdout
  )


NOTICE = "no curves.png: matplotlib is not installed; run in the clone: pip install -e '.[plots]'"


@pytest.mark.slow
def test_a_base_installation_trains_evaluates_and_generates(tmp_path):
  train, evaluate, generate = run_in_base(
    tmp_path,
    ['train', '--config=lm:smoke', '--workdir=run'],
    ['evaluate', '--workdir=run'],
    ['generate', '--workdir=run', '--prompt=import', '--max_tokens=4'],
  )
  assert (train[0], evaluate[0], generate[0]) == (0, 0, 0)
  assert NOTICE in train[1]
  assert train[1].endswith('run: config.json, log.txt, metrics.jsonl, checkpoints/\n')
  assert 'bits_per_byte' in evaluate[1] and 'import' in generate[1]


def test_a_run_without_pictures_says_so(monkeypatch, tmp_path, capsys):
  for name in [name for name in sys.modules if name.partition('.')[0] == 'matplotlib']:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  log = metrics.MetricsLog(tmp_path, 0)
  log.write(1, 'train', dict(loss=2.0))
  log.close()
  assert sorted(path.name for path in tmp_path.iterdir()) == ['metrics.jsonl']
  assert metrics.read(tmp_path / 'metrics.jsonl') == [dict(step=1, split='train', loss=2.0)]
  assert NOTICE in capsys.readouterr().err
