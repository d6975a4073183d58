"""Tensors convert to parameters and back, one at a time, and none is lost or left over."""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from tfm.hf import checkpoint_tensors, tensor_files
from tfm.hf.families.protocol import Part, Weight, drop_axis
from tfm.parallel import mesh as meshes


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 5)).astype(np.float32)


def target(**shapes):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return {name: jax.ShapeDtypeStruct(shape, np.float32, sharding=device) for name, shape in shapes.items()}


def save_and_open(folder, **arrays):
  save_file(arrays, folder / 'model.safetensors')
  return checkpoint_tensors.CheckpointTensors(folder)


@pytest.mark.parametrize(
  'weight, expected',
  [
    (Weight('x', 'a'), dict(a=X)),
    (Weight('x', 'a', 'o i -> i o'), dict(a=X.T)),
    (Weight('x', ('a', 'b', 'c'), '(n o) i -> n i o', dict(n=3)), dict(a=X[:4].T, b=X[4:8].T, c=X[8:].T)),
    (Weight('x', ('a', 'b'), '(o n) i -> n o i', dict(n=2)), dict(a=X[::2], b=X[1::2])),
    (
      Weight('x', (Part('a', 2, 'g o i -> i (o g)'), Part('b')), '(o g) i -> g o i', dict(g=3)),
      dict(a=X.reshape(4, 3, 5)[:, :2].transpose(2, 0, 1).reshape(5, 8), b=X[2::3]),
    ),
    (Weight('x', 'a', skip_rows=2), dict(a=X[2:])),
    (Weight('x', 'a', scale=0.5, offset=1.0), dict(a=0.5 * X + 1)),
  ],
)
def test_a_tensor_converts_to_parameters_and_back(weight, expected, tmp_path):
  params = checkpoint_tensors.load_params(
    save_and_open(tmp_path, x=X), [weight], target(**{name: x.shape for name, x in expected.items()})
  )
  for name, x in expected.items():
    np.testing.assert_allclose(params[name], x, rtol=1e-6)
  if all(part.count == 1 for part in weight.parts):  # otherwise a part needs sizes, as below
    [(name, back)] = checkpoint_tensors.iterate_tensors([weight], params)
    assert name == 'x'
    np.testing.assert_allclose(back[weight.skip_rows :], X[weight.skip_rows :], rtol=1e-6, atol=1e-7)
    assert back.shape == X.shape and not back[: weight.skip_rows].any()


def test_unused_tensors_are_skipped_and_logged(tmp_path, caplog):
  stored = save_and_open(tmp_path, x=X, pooler=X, constant=X)
  checkpoint_tensors.load_params(
    stored, [Weight('x', 'a')], target(a=X.shape), ignored_tensors='constant', unused_tensors='pool.*'
  )
  assert 'pooler' in caplog.text and 'constant' not in caplog.text
  with pytest.raises(ValueError, match="'pooler', one of 1"):
    checkpoint_tensors.load_params(stored, [Weight('x', 'a')], target(a=X.shape), ignored_tensors='constant')


def test_parts_convert_back_to_a_tensor(tmp_path):
  weight = Weight(
    'x', (Part('a', 2, 'g o i -> i (o g)', dict(g=2)), Part('b')), '(o g) i -> g o i', dict(g=3)
  )
  params = checkpoint_tensors.load_params(save_and_open(tmp_path, x=X), [weight], target(a=(5, 8), b=(4, 5)))
  [(_, back)] = checkpoint_tensors.iterate_tensors([weight], params)
  np.testing.assert_array_equal(back, X)


def test_layers_and_experts_are_stacked(tmp_path):
  layers = [RANDOM.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(3)]  # each of two experts
  stored = {f'h.{i}.{e}': layer[e] for i, layer in enumerate(layers) for e in range(2)}
  weights = [Weight((f'h.{i}.0', f'h.{i}.1'), f'a[{i}]/b', 'e o i -> e i o') for i in range(3)]
  params = checkpoint_tensors.load_params(
    save_and_open(tmp_path, **stored), weights, {'a': target(b=(3, 2, 4, 3))}
  )
  np.testing.assert_array_equal(params['a']['b'], np.stack(layers).transpose(0, 1, 3, 2))
  back = dict(checkpoint_tensors.iterate_tensors(weights, params))
  assert back.keys() == stored.keys() and all((back[name] == stored[name]).all() for name in stored)


def test_names_without_prefix_and_with_old_endings(tmp_path):
  stored = save_and_open(tmp_path, **{'LayerNorm.gamma': X, 'h.bias': X})
  weights = [Weight('bert.LayerNorm.weight', 'a')]
  assert (
    checkpoint_tensors.load_params(stored, weights, target(a=X.shape), 'bert.', r'h\.bias')['a'] == X
  ).all()


@pytest.mark.parametrize(
  'weights, shapes, message',
  [
    ([Weight('y', 'a')], dict(a=(12, 5)), "has no tensor 'y'.*did you mean|has no tensor 'y', one of 1"),
    ([Weight('x', 'a')], dict(a=(5, 12)), r"'x' has shape \(12, 5\) as a, and the model requires \(5, 12\)"),
    ([Weight('x', 'b')], dict(a=(12, 5)), "'x' maps to b, and the model has no such parameter"),
    ([Weight('x', 'a')], dict(a=(12, 5), b=(2,)), 'no tensor for the parameter b'),
    ([Weight('x', 'a[1]')], dict(a=(2, 12, 5)), 'no tensor for all of the parameter a'),
    ([], dict(), "has the tensor 'x', one of 1 that this model does not use"),
    (
      [Weight('x', ('a', 'b'), '(n o) i -> n i o', dict(n=3))],
      dict(a=(5, 4), b=(5, 4)),
      "'x' has 3 entries and its parameters use 2",
    ),
  ],
)
def test_mismatches_are_rejected_by_name(weights, shapes, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    checkpoint_tensors.load_params(save_and_open(tmp_path, x=X), weights, target(**shapes))


def test_a_checkpoint_of_several_files(tmp_path):
  many = {f'x{i}': X + i for i in range(5)}
  tensor_files.save_tensors(tmp_path, many.items(), list(many), max_bytes=2 * X.nbytes)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    *(f'model-0000{i}-of-00003.safetensors' for i in (1, 2, 3)),
    'model.safetensors.index.json',
  ]
  again = checkpoint_tensors.CheckpointTensors(tmp_path)
  assert set(again.names) == set(many) and all((again.read(name) == x).all() for name, x in many.items())
  (tmp_path / 'model-00002-of-00003.safetensors').unlink()
  with pytest.raises(ValueError, match='lacks model-00002-of-00003.safetensors'):
    checkpoint_tensors.CheckpointTensors(tmp_path)
  (tmp_path / 'model.safetensors.index.json').unlink()
  with pytest.raises(ValueError, match='has neither model.safetensors nor'):
    checkpoint_tensors.CheckpointTensors(tmp_path)


def test_bfloat16_is_read_and_cast(tmp_path):
  import ml_dtypes

  stored = save_and_open(tmp_path, x=X.astype(ml_dtypes.bfloat16))
  params = checkpoint_tensors.load_params(stored, [Weight('x', 'a')], target(a=X.shape))['a']
  assert params.dtype == np.float32
  np.testing.assert_array_equal(params, X.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_parameters_are_loaded_sharded(tmp_path):
  from jax.sharding import NamedSharding, PartitionSpec

  sharding = NamedSharding(meshes.make(dict(fsdp=4, tensor=2)), PartitionSpec(None, 'fsdp'))
  weights = [Weight('x', 'a[0]'), Weight('y', 'a[1]')]
  params = checkpoint_tensors.load_params(
    save_and_open(tmp_path, x=X, y=2 * X),
    weights,
    {'a': jax.ShapeDtypeStruct((2, 12, 5), np.float32, sharding=sharding)},
  )['a']
  assert params.sharding == sharding and {shard.data.shape for shard in params.addressable_shards} == {
    (2, 3, 5)
  }
  np.testing.assert_array_equal(params, np.stack([X, 2 * X]))


def test_drop_axis():
  assert drop_axis('(h c) d -> d h c', 'd') == '( h c ) -> h c'
  assert drop_axis('o d -> d o', 'd') == ''
  assert drop_axis('(n h c) d -> n d h c', 'd') == '( n h c ) -> n h c'
