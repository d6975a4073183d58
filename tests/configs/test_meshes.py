"""The mesh presets of configs/meshes.py as overlays."""

import pytest

from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.overlay import overlay
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.parallel import mesh as meshes


def load(root, text, base='gpt2.py'):
  return load_config(f'{root}/configs/{base}+{root}/configs/meshes.py{text}')


@pytest.mark.parametrize(
  'text, sizes',
  [
    ('', dict(fsdp=8)),
    (':data', dict(data=8)),
    (':fsdp,tensor=4', dict(fsdp=2, tensor=4)),
    (':fsdp=2,tensor=2', dict(data=2, fsdp=2, tensor=2)),
    (':stage=2,expert=2,sequence', dict(stage=2, expert=2, sequence=2)),
    (':fsdp,data=2', dict(data=2, fsdp=4)),
    (':tensor=2,whole_kv', dict(data=4, tensor=2)),
  ],
)
def test_a_preset_without_a_size_takes_the_remaining_devices(root, text, sizes):
  config = load(root, text)
  plain = load_config(f'{root}/configs/gpt2.py')
  assert meshes.sharded_axes(meshes.resolve(config.mesh.to_dict(), 8)) == sizes
  assert config.model == plain.model and config.training == plain.training
  assert config.rules == (
    plain.rules
    if 'kv' not in text
    else overlay(plain.copy_and_resolve_references(), dict(rules=dict(kv_heads=''))).rules
  )
  validate_run(Experiment(resolve_config(config)), 8)


def test_every_axis_is_a_preset(root):
  for axis in meshes.AXES:
    assert meshes.sharded_axes(meshes.resolve(load(root, f':{axis}').mesh.to_dict(), 8)) == {axis: 8}


@pytest.mark.parametrize('text', [':fdsp', ':fsdp,fsdp=2', ':tensor=two', ':whole_kv=2', ':tensor=-1'])
def test_invalid_presets_are_rejected(root, text):
  with pytest.raises(ValueError, match=f'has no {text[1:].split(",")[-1]!r}; known.*: data, fsdp, tensor'):
    load(root, text)
