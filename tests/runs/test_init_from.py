"""Starting from some of the layers of another run."""

import types

import jax
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.config.validate import validate_parts
from tfm.models.stack import Stack
from tfm.parallel import mesh as meshes
from tfm.runs import load
from tfm.runs import train as training
from tfm.runs.init_from import leaves_by_path, load_pretrained, require_layers


pytestmark = pytest.mark.slow


@pytest.mark.parametrize('scan', [True, False])
@pytest.mark.parametrize(
  'count, layers', [(5, (0, 1, 4, 3, 2)), (6, (4, 1)), (5, (2,)), (3, (0, 1, 2))], ids=str
)
def test_layers_are_selected_by_their_number(scan, count, layers):
  def numbered(numbers):
    """The parameters of a stack whose layers have a number each."""
    stack = Stack((None, None), len(numbers), scan, None, parent=None)
    params, rest = {}, iter(numbers)
    for name, blocks, repeats in stack.parts():
      turns = [{f'block_{i}': {'w': next(rest)} for i in range(len(blocks))} for _ in range(repeats or 1)]
      params[name] = jax.tree.map(lambda *x: np.array(x), *turns) if repeats else turns[0]
    return stack, params

  stack, params = numbered(range(count))
  selected, expected = stack.select_layers(params, layers), numbered(layers)[1]
  assert jax.tree.map(lambda x: np.asarray(x).tolist(), selected) == jax.tree.map(
    lambda x: np.asarray(x).tolist(), expected
  )


@pytest.fixture(scope='module')
def teacher(tiny, tmp_path_factory):
  """The directory of a run of four layers."""
  workdir = tmp_path_factory.mktemp('teacher') / 'run'
  training.train(tiny(**{'model.layers': 4, 'training.steps': 3}), str(workdir))
  return workdir


def config_of(tiny, teacher, layers, **fields):
  return tiny(init_from=str(teacher), init_layers=layers, **{'model.layers': len(layers)} | fields)


def test_a_run_starts_from_every_other_layer(tiny, teacher):
  config = config_of(tiny, teacher, (0, 2))
  pretrained = load_pretrained(config)
  params = pretrained.restore(meshes.make(dict(data=-1)), load.load(str(teacher)).rules)
  assert {name: x.shape for name, x in params.items()} == {
    name: x.shape for name, x in pretrained.shapes.items()
  }
  for name, x in leaves_by_path(load.load(str(teacher)).params).items():
    np.testing.assert_array_equal(params[name], x[::2] if name.startswith('stack/') else x, err_msg=name)


def test_frozen_layers_are_read_again(tiny, teacher, tmp_path):
  """A run whose layers are frozen saves none of them."""
  fields = {'optimizer.frozen': 'stack', 'training.steps': 3}
  training.train(config_of(tiny, teacher, (1, 3), **fields), str(tmp_path / 'run'))
  own, theirs = (leaves_by_path(load.load(str(path)).params) for path in (tmp_path / 'run', teacher))
  for name, x in own.items():
    if name.startswith('stack/'):
      np.testing.assert_array_equal(x, theirs[name][1::2], err_msg=name)


@pytest.mark.parametrize(
  'layers, fields, message',
  [
    ((0, 2), {'model.layers': 3}, r'init_layers=\(0, 2\) has 2 layers and this model config.model.layers=3'),
    ((0, 4), {}, r'init_layers=\(0, 4\): .* has 4 layers, from 0 to 3; use these'),
    ((0, 2), {'model.bias': True}, 'is of another model: model.bias: False → True'),
    ((), {'model.layers': 2}, 'is of another model: model.layers: 4 → 2'),
  ],
)
def test_layers_that_do_not_fit_are_refused(tiny, teacher, layers, fields, message):
  with pytest.raises(ValueError, match=message):
    load_pretrained(config_of(tiny, teacher, layers, **fields))


@pytest.mark.parametrize(
  'model, message',
  [
    (dict(pattern=2), 'the pattern repeats after 2 layers, .* that leave the rests 0 to 1 in turn'),
    (dict(pattern=1, encoder=None), "selects layers of one stack, and architecture='decoder' has two"),
  ],
)
def test_layers_of_other_kinds_are_refused(tiny, teacher, model, message):
  pattern = (None,) * model.pop('pattern')
  one = types.SimpleNamespace(stack=lambda: Stack(pattern, 4, True, None, parent=None), **model)
  with pytest.raises(ValueError, match=message):
    require_layers(config_of(tiny, teacher, (0, 2)), one)


def test_layers_without_a_run_are_refused(tiny):
  with pytest.raises(
    ValueError, match=r'init_layers=\(0, 2\) are layers of another run; set config.init_from'
  ):
    validate_parts(Experiment(tiny(init_layers=(0, 2))))
