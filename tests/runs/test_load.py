"""The mesh on which a run is read."""

import pytest

from tfm.config.overlay import assign
from tfm.config.schema import default_config
from tfm.runs import load


def config_with(**sizes):
  config = default_config()
  for axis, size in sizes.items():
    assign(config, f'mesh.{axis}', size)
  return config


def sizes(mesh):
  return {axis: size for axis, size in mesh.shape.items() if size > 1}


def test_a_run_is_read_on_the_mesh_of_its_training(capsys):
  trained = config_with(data=1, fsdp=4, tensor=2)
  assert sizes(load.make_mesh(trained, trained)) == dict(fsdp=4, tensor=2)
  assert not capsys.readouterr().err


@pytest.mark.parametrize('mesh', [dict(data=1, fsdp=64), dict(data=4, stage=2)], ids=['too large', 'stages'])
def test_where_that_mesh_does_not_apply_the_parameters_are_replicated_with_a_notice(mesh, capsys):
  trained = config_with(**mesh)
  assert sizes(load.make_mesh(trained, trained)) == dict(data=8)
  assert 'every device holds all parameters; set --config.mesh' in capsys.readouterr().err


def test_a_mesh_that_is_set_applies_or_is_refused():
  trained = config_with(data=1, fsdp=64)
  assert sizes(load.make_mesh(trained, config_with(data=2, fsdp=-1))) == dict(data=2, fsdp=4)
  with pytest.raises(ValueError, match='fsdp=3 needs 3 devices and there are 8'):
    load.make_mesh(trained, config_with(data=1, fsdp=3))
  with pytest.raises(ValueError, match='config.mesh.stage=2: only training has pipeline stages'):
    load.make_mesh(trained, config_with(data=4, stage=2))
