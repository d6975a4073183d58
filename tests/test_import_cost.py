"""What starting costs, in imported modules: seconds differ between machines, modules do not."""

import json
import re
import sys

import pytest

from tests.bare_process import run_bare
from tests.test_extras import OPTIONAL


# Besides the packages of extras, what those import, and other frameworks; Grain imports prometheus_client.
HEAVY = {*OPTIONAL, *'nltk pyarrow scipy tensorflow tensorflow_datasets torch transformers'.split()}
HEAVY -= {'prometheus_client'}
STUDY = """
from tfm.studies.study import Study

def get_study(arg):
  arms = {name: {'model.position': name} for name in ('rope', 'ropee')}
  return Study(question='?', config={}, arms=arms, base='rope')
"""
LIBRARIES = 'jax jaxlib flax optax orbax grain numpy tensorstore'.split()


def imported_modules(tmp_path, code):
  """The modules that a new process has imported after running some code, and what it wrote to stderr."""
  program = f'import sys\n{code}\nprint("\\n" + " ".join(sys.modules))'
  process = run_bare(tmp_path, program)
  return process.stdout.splitlines()[-1].split(), process.stderr


def packages(modules):
  return {name.partition('.')[0] for name in modules}


def command(*words):
  return f'from tfm.commands import cli\ncli.main({json.dumps(words)})'


def test_importing_tfm_imports_no_other_package(tmp_path):
  modules, _ = imported_modules(tmp_path, 'import tfm\ntfm.__version__, dir(tfm)')
  plain, _ = imported_modules(tmp_path, '')
  assert packages(modules) - packages(plain) - sys.stdlib_module_names == {'tfm'}


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
  'words, refusal',
  [
    (['--help'], ''),
    (['configs'], ''),
    (['trian', '--config=lm'], "did you mean 'train'"),
    (['train', '--config=lm', '--wrokdir=x', '--workdir=x'], "did you mean '--workdir'"),
    (['train', '--config=lm', '--workdir=x', '--config.model.hedas=4'], "did you mean 'heads'"),
    (['train', '--config=vitt', '--workdir=x'], "did you mean 'vit'"),
    (['ablate', 'positions', '--workdir=x'], "did you mean 'position'"),
    (['ablate', 'position', '--workdir=x', '--seed=3'], "did you mean '--seeds'"),
    (['compare', 'x', '--to=y', '--matric=loss'], "did you mean '--metric'"),
    (['attend', '--workdir=x', '--input=y', '--layer=3'], "did you mean '--layers'"),
    (['benchmark', 'gpt2', '--workdri=x'], "'--workdri=x' is not a flag"),
    (['check', 'x', '--quik'], "did you mean '--quick'"),
    (['evaluate', '--workdir=x', '--spilt=test'], "did you mean '--split'"),
    (['export', '--workdir=x', '--to=y', '--famly=x'], "did you mean '--family'"),
    (['generate', '--workdir=x', '--promt=y'], "did you mean '--prompt'"),
    (['import', '--from=x', '--workdir=y', '--setp=3'], "'--setp=3' is not a flag"),
    (['inspect', '--config=lm', '--device=3'], "did you mean '--devices'"),
    (['plan', '--config=lm', '--topology=v5e:2x2', '--serach'], "did you mean '--search'"),
    (['runs', '--jsno'], "did you mean '--json'"),
    (['watch', 'x', '--quit'], "did you mean '--quiet'"),
    (['variants', '--al'], "'--al' is not a flag"),
    (
      ['train', '--config=lm:dmeo', '--workdir=x'],
      "has no 'dmeo'; known: demo, rope_nope, smoke; did you mean 'demo'",
    ),
    (['train', '--config=lm:smoke', '--workdir=x', '--config.model.position=ropee'], "did you mean 'rope'"),
    (['train', '--config=lm', '--workdir=x', '--config.model.mask=causal & windw(3)'], "mean 'window'"),
    (['train', '--config=lm', '--workdir=x', '--config.model.mask=window(3'], 'is not a spec'),
    (['train', '--config=lm', '--workdir=x', '--config.data.source=txt("*.txt")'], "did you mean 'text'"),
    (['train', '--config=lm', '--workdir=x', '--config.data.source=my.txt'], r'use text\("my.txt"\)'),
    (['train', '--config=lm', '--workdir=x', '--config.optimizer.schedule=cosin'], "did you mean 'cosine'"),
    (['train', '--config=lm', '--workdir=x', '--config.model.dtype=float33'], "did you mean 'float32'"),
    (['train', '--config=lm', '--workdir=x', '--config.model.width=0'], 'must be at least 1'),
    (['ablate', 'position:dmeo', '--workdir=x'], "has no 'dmeo'; known: demo; did you mean 'demo'"),
    (['evaluate', '--workdir=nowhere'], 'holds no run'),
    (['generate', '--workdir=nowhere', '--prompt=x'], 'holds no run'),
    (['evaluate', '--workdir=run', '--metric=bleuu'], "did you mean 'bleu'"),
    (['ablate', 'position', '--workdir=x', '--arms=rope,ailbi'], "no arm 'ailbi'.*mean 'alibi'"),
    (['attend', '--workdir=run', '--input=x', '--config.model.kernel=dens'], "did you mean 'dense'"),
    (['compare', 'run', '--to=x', '--metric=los'], "--metric=los is no metric.*mean 'loss'"),
    (['coordinates', '--config=lm', '--widths=8,16', '--config.model.norm=rmnorm'], "mean 'rmsnorm'"),
    (['evaluate', '--workdir=run', '--split=tset'], "--split='tset'.*mean 'test'"),
    (['evaluate', '--workdir=run', '--lengths=8', '--protocol=slidin'], "did you mean 'sliding'"),
    (['export', '--workdir=run', '--to=x', '--format=onx(length=8)'], "--format='onx.*mean 'onnx'"),
    (['export', '--workdir=run', '--to=x', '--family=gtp2'], "--family='gtp2' is unknown.*mean 'gpt2'"),
    (['generate', '--workdir=run', '--prompt=x', '--penalty=gnm(0.6)'], "--penalty='gnm.*mean 'gnmt'"),
    (['generate', '--workdir=run', '--prompt=x', '--stopping=provn'], "did you mean 'proven'"),
    (['import', '--from=x', '--workdir=y', '--config.data.source=txt'], "did you mean 'text'"),
    (['inspect', 'causal & windw(3)'], "names 'windw', which none of .*mean 'window'"),
    (['inspect', 'cosin', '--config=lm'], "did you mean 'cosine'"),
    (['launch', 'gke', '--config=lm', '--workdir=x', '--cluser=y'], "did you mean 'cluster'"),
    (['launch', 'slurm', '--config=lm', '--workdir=x', '--config.model.norm=rmnorm'], "mean 'rmsnorm'"),
    (['launch', 'slurm', '--study=study.py', '--slices=1', '--workdir=x'], "arm 'ropee': .*mean 'rope'"),
    (['plan', '--config=lm', '--topology=v5q:2x2'], r'a TPU generation \(v4, v5e'),
    (['plan', '--config=lm', '--topology=v5p:2x2'], 'use v5p:2x2x1'),
    (['plan', '--config=lm', '--topology=here', '--axes=data,fsdq'], "did you mean 'fsdp'"),
    (['quantize', '--workdir=run', '--to=x', '--quantization=itn8'], "did you mean 'int8'"),
    (['sample', '--workdir=run', '--sampler=ddim2'], "--sampler='ddim2.*mean 'ddim'"),
    (['serve', '--workdir=run', '--config.model.kernel=dens'], "did you mean 'dense'"),
    (['ablate', 'study.py', '--workdir=x'], "the arm 'ropee': .*did you mean 'rope'"),
    (['train', '--config=lm', '--workdir=x', '--variants=lab', '--config.model.norm=mien'], "mean 'mine'"),
  ],
  ids=' '.join,
)
def test_help_and_the_refusal_of_a_typo_import_neither_jax_nor_numpy(tmp_path, words, refusal):
  (tmp_path / 'run' / 'checkpoints').mkdir(parents=True)
  (tmp_path / 'run' / 'config.json').write_text('{"model": {}}')
  (tmp_path / 'run' / 'metrics.jsonl').write_text('{"step": 1, "split": "validation", "loss": 1.0}\n')
  (tmp_path / 'lab' / 'norms').mkdir(parents=True)
  (tmp_path / 'lab' / 'norms' / 'mine.py').write_text('import jax')
  (tmp_path / 'study.py').write_text(STUDY)
  modules, err = imported_modules(tmp_path, command(*words))
  assert re.search(refusal, err) and bool(err) == bool(refusal)
  assert not packages(modules) & {*LIBRARIES, *HEAVY}
  assert len(modules) < 400, len(modules)


def test_training_a_language_model_imports_what_it_needs_and_no_more(tmp_path):
  code = (
    'from tfm.runs import train\n'
    'from tfm.config.assemble import Experiment\n'
    'from tfm.config.load import load_config\n'
    'from tfm.config.resolve import resolve_config\n'
    "Experiment(resolve_config(load_config('lm:smoke'))).build_model(256)"
  )
  modules, _ = imported_modules(tmp_path, code)
  assert set(LIBRARIES) <= packages(modules)
  assert not packages(modules) & HEAVY
  assert len(modules) < 1850, len(modules)
