"""Puts small errors into the code that computes, one at a time, and prints those that no test notices.

  make mutants                                              # five of each module
  make mutants MUTANTS='--sample=25 tfm/training/step.py'   # of some

The errors are those of mutmut, without such as only change a string. Each is put into a copy of the working
tree, where the module's own tests run (`TESTS`), the quick ones first. A survivor is a hole in these tests,
or it changes nothing that anybody could see, or other tests notice it.
"""

import argparse
import ast
import difflib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
from typing import NamedTuple

import pytest
from mutmut.mutation import file_mutation

from tests.paths import ROOT


SECONDS = 300  # of the tests of one mutant; one that takes longer counts as noticed
PATHS = (
  'tfm/training',
  'tfm/decoding',
  'tfm/evaluation',
  'tfm/objectives',
  'tfm/data/packing',
  'tfm/data/row_share.py',
)
# The tests of a module, in its folder's tests, unless they are test_MODULE*.py.
TESTS = {
  'data/packing/answered': 'objectives/test_answers.py',
  'data/packing/each': 'data/test_class_labels.py data/test_images.py',
  'data/packing/sentence_pairs': 'objectives/test_masked_lm.py',
  'data/packing/buckets': 'data/test_pairs.py',
  'data/packing/preferences': 'objectives/test_dpo.py data/test_sources.py',
  'data/packing': 'data/test_packing.py data/test_pairs.py data/test_mixture.py data/test_task_rows.py',
  'decoding/unroll_layers': 'decoding/test_loop.py decoding/test_translate.py',
  'evaluation/attention_page': 'evaluation/test_attention_files.py',
  'evaluation/attention_picture': 'evaluation/test_attention_files.py',
  'evaluation/length_plot': 'evaluation/test_length_extrapolation.py',
  'evaluation/sliding_windows': 'evaluation/test_length_extrapolation.py',
  'objectives/_layer_losses': 'objectives/test_layer_losses.py',
  'objectives/_variational_bound': 'objectives/test_diffusion.py',
  'objectives/causal_lm': 'objectives/test_protocol.py objectives/test_recurrence.py',
  'training/loss_scale': 'training/test_step_by_hand.py',
  'training/reporters': 'training/test_goodput.py training/test_loop.py',
  'training/sinks': 'training/test_sinks.py',
  'training/state': 'training/test_step.py',
}


class Mutant(NamedTuple):
  """A function with an error.

  Attributes:
    original, mutated: its source.
    path: the names of the classes and the function that hold it.
  """

  path: tuple[str, ...]
  original: str
  mutated: str

  def put_into(self, source: str) -> str:
    """The source of the module with this function."""
    node = ast.parse(source)
    for name in self.path:
      node = next(child for child in ast.walk(node) if getattr(child, 'name', None) == name)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    lines, function = source.splitlines(), ast.parse(self.mutated).body[0]
    function.name, function.decorator_list = node.name, node.decorator_list
    text = textwrap.indent(ast.unparse(function), ' ' * node.col_offset)
    return '\n'.join([*lines[:first], text, *lines[node.end_lineno :], ''])

  def difference(self) -> str:
    """The lines that differ."""
    lines = difflib.ndiff(self.original.splitlines()[1:], self.mutated.splitlines()[1:])
    return '\n'.join(f'    {line}' for line in lines if line[0] in '+-')


class WithoutStrings(ast.NodeTransformer):
  def visit_Constant(self, node):
    return ast.Constant('') if isinstance(node.value, str) else node


def find_mutants(source: str) -> list[Mutant]:
  """The mutants of all functions of a module that differ in more than strings."""
  mutated = file_mutation.mutate_file_contents('', source)
  functions = {
    node.name: node for node in ast.walk(ast.parse(mutated.code)) if isinstance(node, ast.FunctionDef)
  }

  def meaning(name):
    tree = WithoutStrings().visit(ast.parse(ast.unparse(functions[name])))
    tree.body[0].name = ''
    return ast.dump(tree)

  result = []
  for name in (full.rpartition('.')[2] for full in mutated.mutant_names):
    stem = name.partition('__mutmut_')[0]  # x_function or xǁClassǁmethod
    original = f'{stem}__mutmut_orig'
    if meaning(name) != meaning(original):
      path = tuple(stem.split('ǁ')[1:]) or (stem.removeprefix('x_'),)
      result.append(Mutant(path, ast.unparse(functions[original]), ast.unparse(functions[name])))
  return result


def find_tests(module: pathlib.PurePath) -> list[str]:
  """The files with the tests of a module, such as tfm/training/step.py."""
  inside = module.relative_to('tfm').with_suffix('')
  for key in (str(inside), str(inside.parent)):
    if key in TESTS:
      return [f'tests/{name}' for name in TESTS[key].split()]
  return sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / 'tests' / inside.parent).glob(f'test_{inside.name}*.py')
  )


def is_noticed(tree: pathlib.Path, tests: list[str]) -> bool:
  """Whether one of the tests fails in a tree, or takes too long."""
  environment = os.environ | dict(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE='1')
  # The slow ones see what the quick ones did not.
  for marks in ('not slow and not exhaustive', 'slow and not exhaustive'):
    command = [sys.executable, '-m', 'pytest', '-x', '-p', 'no:cacheprovider', '-m', marks, *tests]
    try:
      run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
      return True
    if run.returncode == pytest.ExitCode.TESTS_FAILED:
      return True
    if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
      raise RuntimeError(f'{" ".join(command)} cannot run:\n{run.stdout.decode()}{run.stderr.decode()}')
  return False


def copy_tree(to: pathlib.Path) -> None:
  """Copies the files that git knows, or would."""
  command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard']
  for name in subprocess.run(
    command, cwd=ROOT, check=True, capture_output=True, text=True, encoding='utf-8'
  ).stdout.splitlines():
    if (ROOT / name).is_file():
      (to / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, to / name)


def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('paths', nargs='*', default=PATHS, help='modules or folders')
  parser.add_argument('--sample', type=int, default=5, help='mutants of each module')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args(argv)
  modules = [
    path.relative_to(ROOT)
    for given in map(ROOT.joinpath, args.paths)
    for path in (sorted(given.rglob('*.py')) if given.is_dir() else [given])
  ]
  with tempfile.TemporaryDirectory() as folder:
    tree = pathlib.Path(folder)
    copy_tree(tree)
    for module in modules:
      source, tests = (tree / module).read_text(encoding='utf-8'), find_tests(module)
      if not (mutants := find_mutants(source)):
        continue
      if not tests or is_noticed(tree, tests):
        print(f'{module}: left out, because it has no tests of its own, or they fail', flush=True)
        continue
      chosen = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
      survivors = []
      for mutant in chosen:
        (tree / module).write_text(mutant.put_into(source), encoding='utf-8')
        if not is_noticed(tree, tests):
          survivors.append(mutant)
      (tree / module).write_text(source, encoding='utf-8')
      print(f'{module}: {len(chosen)} of {len(mutants)} mutants, {len(survivors)} survived', flush=True)
      for mutant in survivors:
        print(f'  {".".join(mutant.path)}\n{mutant.difference()}', flush=True)


if __name__ == '__main__':
  main()
