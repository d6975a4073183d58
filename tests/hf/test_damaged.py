"""Damaged or malformed published checkpoints are rejected in one sentence that names the file."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy

import tfm
from tests.hf.test_export import LLAMA, build
from tests.hf.tiny_checkpoints import write_checkpoint
from tfm.hf import checkpoint_tensors, export, from_config, pretrained


LLAMA3 = dict(rope_type='llama3', factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
SIZES = dict(
  hidden_size=32, intermediate_size=48, num_attention_heads=4, max_position_embeddings=32, vocab_size=61
)


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  folder = tmp_path_factory.mktemp('model') / 'llama'
  config, model, params = build(LLAMA)
  export.to_pretrained(config, params, str(folder), 'llama', 61)
  return folder


@pytest.fixture
def folder(exported, tmp_path):
  return shutil.copytree(exported, tmp_path / 'llama')


def load_error(folder):
  with pytest.raises(ValueError) as error:
    tfm.from_pretrained(str(folder))
  message = str(error.value)
  assert str(folder) in message and '\n' not in message and len(message) < 1000, message
  return message


def test_the_undamaged_one_loads(folder):
  assert tfm.from_pretrained(str(folder)).logits(np.ones((1, 3), np.int32)).shape == (1, 3, 61)


@pytest.mark.parametrize(
  'content', [b'', b'[]', b'3', b'{', b'{"model_type": ["llama"]}', b'\xff\xfe', b'[' * 100_000]
)
def test_config_json_that_is_no_object(folder, content):
  (folder / 'config.json').write_bytes(content)
  load_error(folder)


@pytest.mark.parametrize(
  'change',
  [
    dict(vocab_size=10**12),
    dict(vocab_size=-1),
    dict(vocab_size='many'),
    dict(num_hidden_layers=10**9),
    dict(num_hidden_layers=None),
    dict(num_hidden_layers=0),
    dict(max_position_embeddings=0),
    dict(max_position_embeddings=10**12),
    dict(rms_norm_eps=-1.0),
    dict(rms_norm_eps='small'),
    dict(num_attention_heads=0),
    dict(num_attention_heads=True),
    dict(hidden_size=[32]),
    dict(hidden_size=10**12),
    dict(rope_theta=-1.0),
    dict(intermediate_size=-3),
  ],
  ids=str,
)
def test_senseless_fields_of_config_json(folder, change):
  fields = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps(fields | change))
  assert 'config.json' in load_error(folder)


@pytest.mark.parametrize(
  'change, sentence',
  [
    (
      dict(rope_theta=500.0, rope_parameters=dict(rope_type='default', rope_theta=1e4)),
      'rope_theta=500.0 and rope_parameters.rope_theta=10000.0 differ',
    ),
    (
      dict(rope_theta=None, rope_parameters=dict(rope_theta=1e4), rope_scaling=dict(rope_theta=5e5)),
      'rope_parameters.rope_theta=10000.0 and rope_scaling.rope_theta=500000.0 differ',
    ),
    (
      dict(
        original_max_position_embeddings=16, rope_scaling=LLAMA3 | dict(original_max_position_embeddings=8)
      ),
      'original_max_position_embeddings=16 and rope_scaling.original_max_position_embeddings=8 differ',
    ),
  ],
)
def test_fields_that_contradict_each_other(change, sentence):
  fields = SIZES | dict(num_hidden_layers=2, model_type='llama', rms_norm_eps=1e-5) | change
  with pytest.raises(ValueError, match=f'{re.escape(sentence)}; leave one of them'):
    from_config.load_families()['llama'].read(fields)
  equal = dict(rope_theta=500.0, rope_parameters=dict(rope_type='default', rope_theta=500.0))
  config = from_config.load_families()['llama'].read(fields | dict.fromkeys(change) | equal).fields
  assert config['model.position'] == 'rope(theta=500.0)'


@pytest.mark.parametrize(
  'change',
  [
    dict(partial_rotary_factor=0.5),
    dict(rope_parameters=dict(rope_type='default', partial_rotary_factor=0.5)),
  ],
  ids=str,
)
def test_channels_that_a_family_always_rotates(change):
  """Its published code ignores the field."""
  fields = SIZES | dict(num_hidden_layers=2, model_type='llama', rms_norm_eps=1e-5)
  with pytest.raises(ValueError, match='partial_rotary_factor=0.5 is not supported: this family rotates all'):
    from_config.load_families()['llama'].read(fields | change)
  config, _, params = build(LLAMA | dict(position='rope(fraction=0.5)'))
  with pytest.raises(ValueError, match=r"'rope\(fraction=0.5\)' is not supported: the family rotates all"):
    export.to_pretrained(config, params, 'nowhere', 'llama', 61)


@pytest.mark.parametrize(
  'family, table, output',
  [
    ('gpt2', 'transformer.wte.weight', 'lm_head.weight'),
    ('distilbert', 'distilbert.embeddings.word_embeddings.weight', 'vocab_projector.weight'),
  ],
)
def test_an_output_beside_a_tied_table_is_not_ignored(tmp_path, family, table, output):
  """transformers 5 does not tie what differs, earlier versions did."""
  folder = tmp_path / family
  write_checkpoint(family, folder)
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  safetensors.numpy.save_file(tensors | {output: tensors[table]}, folder / 'model.safetensors')
  stored = checkpoint_tensors.CheckpointTensors(folder)
  fields = json.loads((folder / 'config.json').read_text())
  module = from_config.load_families()[family]
  config = from_config.config_from_hf(module, fields)[0]
  pretrained.resolve_tying(config, 'vocabulary', module, stored)
  assert config.model.tie_embeddings and output not in stored.names
  safetensors.numpy.save_file(tensors | {output: 2 * tensors[table]}, folder / 'model.safetensors')
  assert f'{table!r} and {output!r}, which differ, and its config ties them' in load_error(folder)


@pytest.mark.parametrize(
  'family, fields',
  [
    ('qwen2', SIZES | dict(num_hidden_layers=10**9)),
    ('gpt2', dict(n_layer=10**9, scale_attn_by_inverse_layer_idx=True)),
  ],
)
def test_a_senseless_number_of_layers_is_never_listed(family, fields):
  with pytest.raises(ValueError, match='=1000000000 must be at least 1 and at most 10,000'):
    from_config.load_families()[family].read(fields | dict(model_type=family))


@pytest.mark.parametrize(
  'damage',
  [
    lambda data: b'',
    lambda data: data[:7],
    lambda data: data[: len(data) // 2],
    lambda data: b'\xff' * 8 + data[8:],
    lambda data: data[:8] + b'[' * (len(data) - 8),
    lambda data: data[:8] + data[8:].replace(b'"F32"', b'"X99"'),
  ],
)
def test_damaged_safetensors(folder, damage):
  file = folder / 'model.safetensors'
  file.write_bytes(damage(file.read_bytes()))
  assert 'model.safetensors' in load_error(folder)


def test_a_pipe_is_no_checkpoint(folder):
  (folder / 'model.safetensors').unlink()
  os.mkfifo(folder / 'model.safetensors')
  assert 'has neither model.safetensors nor' in load_error(folder)


NAME = 'model.layers.1.mlp.up_proj.weight'


@pytest.mark.parametrize(
  'change, reason',
  [
    (lambda x: x.astype(np.int32), 'as int32, and parameters are floating-point numbers'),
    (lambda x: x > 0, 'as bool, and parameters are floating-point numbers'),
    (lambda x: x * np.nan, 'that are NaN or infinite in float32'),
    (lambda x: x + np.inf, 'that are NaN or infinite in float32'),
    (lambda x: x.astype(np.float64) + 1e300, 'that are NaN or infinite in float32'),
    (lambda x: np.ascontiguousarray(x.T), 'has shape'),
    (lambda x: x[None], "its shape (1, 48, 32) is not '"),
    (lambda x: x[0], "its shape (32,) is not '"),
  ],
)
def test_wrong_tensors(folder, change, reason):
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  tensors[NAME] = change(tensors[NAME])
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  message = load_error(folder)
  assert NAME in message and reason in message


@pytest.mark.parametrize(
  'weight_map, reason',
  [
    ({}, 'its weight_map lists no tensor'),
    ([], 'its weight_map lists no tensor'),
    ({NAME: 3}, 'which is not the name of a file in the same folder'),
    ({NAME: '../other/model.safetensors'}, 'which is not the name of a file in the same folder'),
    ({NAME: '/etc/passwd'}, 'which is not the name of a file in the same folder'),
    ({NAME: 'absent.safetensors'}, 'lacks absent.safetensors'),
  ],
  ids=str,
)
def test_index_files(folder, weight_map, reason):
  index = folder / 'model.safetensors.index.json'
  index.write_text(json.dumps(dict(weight_map=weight_map)))
  assert reason in load_error(folder)
  for content in ('[]', '{}'):
    index.write_text(content)
    assert 'its weight_map lists no tensor' in load_error(folder)


def test_the_first_layer_with_a_window_is_whole(tmp_path):
  folder = tmp_path / 'qwen2'
  write_checkpoint('qwen2', folder)
  file = folder / 'config.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | dict(max_window_layers=-np.inf)))
  assert 'max_window_layers=-inf must be whole' in load_error(folder)
