"""Products in integers: against numpy, their gradients, and whole models."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.objectives.test_distillation import built
from tfm.commands import cli
from tfm.data import pipeline
from tfm.decoding.unroll_layers import unroll_layers
from tfm.layers.linear import Linear
from tfm.layers.quantization import QUANTIZATIONS, bitnet, fp8, int4, int8
from tfm.runs import load as runs
from tfm.runs import train as training
from tfm.runs.init_from import leaves_by_path
from tfm.runs.quantize import quantize_run
from tfm.spec import build_from_table


pytestmark = pytest.mark.slow


def rounded(x, bound, axis, limit):
  """Integers and scales of x in numpy: the greatest absolute value along an axis becomes `bound`."""
  scale = np.abs(x).max(axis, keepdims=True) / bound
  return np.clip(np.round(x / scale), -limit - 1, limit), scale


@pytest.fixture
def arrays():
  """x and W, whose greatest values are positive: a negative one lies half-way between two integers."""
  draw = np.random.default_rng(0)
  x, w = draw.standard_normal((3, 5, 32)), draw.standard_normal((32, 6))
  x[..., 0], w[::8] = 4, 4 + draw.random((4, 6))
  return x.astype(np.float32), w.astype(np.float32)


@pytest.mark.parametrize('weights_only', [False, True])
def test_int8_has_a_scale_for_each_output_and_each_token(arrays, weights_only):
  x, w = arrays
  integers, scale = rounded(w, 127.5, 0, 127)
  if weights_only:
    expected = x @ (integers * scale)
  else:
    tokens, token_scale = rounded(x, 127.5, -1, 127)
    expected = (tokens @ integers) * token_scale * scale
  quantization = int8(weights_only)
  np.testing.assert_allclose(quantization.multiply(x, w, None), expected, rtol=1e-4, atol=1e-4)
  stored = quantization.quantize(w)
  assert stored[0].dtype == jnp.int8 and stored[1].shape == quantization.scale_shape(32, (6,)) == (1, 6)
  np.testing.assert_array_equal(quantization.multiply(x, *stored), quantization.multiply(x, w, None))


def test_int4_has_a_scale_for_each_group_of_inputs(arrays):
  x, w = arrays
  integers, scale = rounded(w.reshape(4, 8, 6), 7.5, 1, 7)
  quantization = int4(group=8)
  stored = quantization.quantize(w)
  assert stored[0].dtype == jnp.int4 and stored[1].shape == quantization.scale_shape(32, (6,)) == (4, 6)
  expected = x @ (integers * scale).reshape(32, 6)
  np.testing.assert_allclose(quantization.multiply(x, *stored), expected, rtol=1e-4, atol=1e-4)
  with pytest.raises(ValueError, match='group=8, which does not divide the 30 inputs'):
    quantization.scale_shape(30, (6,))


def test_fp8_has_a_scale_for_each_output_and_each_token(arrays):
  x, w = arrays

  def rounded(x, axis):
    scale = np.abs(x).max(axis, keepdims=True) / 448
    return (x / scale).astype(jnp.float8_e4m3fn).astype(np.float32) * scale

  stored = fp8().quantize(w)
  assert stored[0].dtype == jnp.float8_e4m3fn and stored[1].shape == fp8().scale_shape(32, (6,)) == (1, 6)
  for arguments in ((w, None), stored):
    np.testing.assert_allclose(
      fp8().multiply(x, *arguments), rounded(x, -1) @ rounded(w, 0), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize('make, greatest', [(int8, 127.5), (fp8, 448)])
def test_calibrated_inputs_have_one_scale_and_are_cut_beyond_it(arrays, make, greatest):
  x, w = arrays
  quantization = make(calibrated=True, stored=True)
  scale = np.float32(3 / greatest)
  kernel, kernel_scale = quantization.quantize(w)
  numbers = x / scale  # the greatest input is 4
  if make is int8:
    numbers = np.clip(np.round(numbers), -128, 127)
  else:
    numbers = np.clip(numbers, -448, 448).astype(jnp.float8_e4m3fn).astype(np.float32)
  expected = (numbers @ np.asarray(kernel, np.float32)) * scale * np.asarray(kernel_scale)
  assert quantization.input_scale(jnp.float32(3)) == scale
  actual = quantization.multiply(x, kernel, kernel_scale, jnp.asarray(scale))
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
  assert np.abs(actual - x @ w).max() > 0.5  # as inputs are cut


def test_bitnet_has_three_weights_and_one_scale(arrays):
  x, w = arrays
  scale, step = np.abs(w).mean(), np.abs(x).max(-1, keepdims=True) / 127
  ternary, tokens = np.clip(np.round(w / scale), -1, 1), np.clip(np.round(x / step), -128, 127)
  stored = bitnet().quantize(w)
  np.testing.assert_array_equal(stored[0], ternary)
  assert set(np.unique(ternary)) == {-1, 0, 1} and stored[1].shape == bitnet().scale_shape(32, (6,)) == (1, 6)
  expected = tokens @ ternary * step * scale
  for arguments in ((w, None), stored):
    np.testing.assert_allclose(bitnet().multiply(x, *arguments), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_bitnet_are_those_of_the_rounded_product(arrays):
  x, w = map(jnp.asarray, arrays)
  weights = np.random.default_rng(1).standard_normal((3, 5, 6)).astype(np.float32)
  scale, step = jnp.abs(w).mean(), jnp.abs(x).max(-1, keepdims=True) / 127
  rounded = jnp.round(x / step) * step, jnp.clip(jnp.round(w / scale), -1, 1) * scale
  actual = jax.grad(lambda x, w: (bitnet().multiply(x, w, None) * weights).sum(), (0, 1))(x, w)
  expected = jax.grad(lambda x, w: (x @ w * weights).sum(), (0, 1))(*rounded)
  for a, b in zip(actual, expected):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('quantization', [int8(), int8(weights_only=True), int4(group=8)], ids=str)
def test_gradients_pass_straight_through(arrays, quantization):
  weights = np.random.default_rng(1).standard_normal((3, 5, 6)).astype(np.float32)
  actual, expected = (
    jax.grad(lambda x, w: (f(x, w) * weights).sum(), argnums=(0, 1))(*map(jnp.asarray, arrays))
    for f in (lambda x, w: quantization.multiply(x, w, None), lambda x, w: x @ w)
  )
  for a, b in zip(actual, expected):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def relative_error(actual, exact):
  return np.sqrt(((actual - exact) ** 2).mean() / (exact**2).mean())


@pytest.mark.sampled(2)
@pytest.mark.parametrize('spec', ['int8', 'int8(weights_only=True)', 'int4(group=8)', 'fp8', 'bitnet'])
def test_a_model_multiplies_integers(tiny, spec):
  _, model, params = built(tiny, **{'model.quantization': spec})
  _, plain, _ = built(tiny)
  params = jax.tree.map(lambda x: x / 5 if x.ndim > 1 else x, params)
  tokens = np.random.default_rng(2).integers(0, 50, (2, 16)).astype(np.int32)

  def logits(model, params):
    return jax.jit(lambda params: model.apply({'params': params}, *model.arguments(tokens))[0])

  text = logits(model, params).lower(params).as_text()
  has_integers = any(
    'xi8>' in line and 'xi32>' in line for line in text.splitlines() if 'dot_general' in line
  )
  assert has_integers == (spec in ('int8', 'bitnet'))
  actual, exact = (np.asarray(logits(m, params)(params)) for m in (model, plain))
  quantization = build_from_table(spec, QUANTIZATIONS)
  # Errors of the products of two layers add up: 3.9 times one of them at most, of normal numbers.
  x, w = (
    np.random.default_rng(3).standard_normal(shape).astype(np.float32) for shape in ((64, 32), (32, 64))
  )
  one_product = relative_error(quantization.multiply(x, w, None), x @ w)
  assert 0 < relative_error(actual, exact) < 5 * one_product
  unrolled = logits(*unroll_layers(model, params))(unroll_layers(model, params)[1])
  np.testing.assert_allclose(unrolled, actual, rtol=1e-3, atol=1e-3 * np.abs(actual).max())


@pytest.fixture(scope='module')
def trained(tiny, tmp_path_factory):
  """A run trained with quantized products."""
  workdir = tmp_path_factory.mktemp('quantized') / 'run'
  training.train(tiny(**{'model.quantization': 'int8', 'training.steps': 12}), str(workdir))
  return workdir


def test_a_run_trained_in_integers_evaluates_as_before_when_they_are_stored(trained, tmp_path, capsys):
  folder = tmp_path / 'stored'
  assert cli.main(['quantize', f'--workdir={trained}', f'--to={folder}', '--split=test']) == 0
  lines = [line for line in capsys.readouterr().err.splitlines() if 'bytes of parameters' in line]
  assert len(lines) == 2
  run, stored = runs.load(str(trained)), runs.load(str(folder))
  assert stored.config.model.quantization == 'int8(stored=True)'
  assert stored.params['stack']['layers']['block_0']['feed_forward']['up']['kernel'].dtype == jnp.int8
  a, b = (runs.evaluate(one, 'test').metrics for one in (run, stored))
  np.testing.assert_allclose(b['loss'], a['loss'], rtol=1e-6)
  assert cli.main(['generate', f'--workdir={folder}', '--prompt=Now', '--max_tokens=4']) == 0


@pytest.mark.sampled(0)
@pytest.mark.parametrize('spec', ['int8', 'int8(weights_only=True)', 'int4(group=8)', 'fp8'])
def test_a_run_is_quantized_after_training(tiny, tmp_path, spec):
  training.train(tiny(**{'training.steps': 12}), str(tmp_path / 'run'))
  run = runs.load(str(tmp_path / 'run'))
  losses = [runs.evaluate(one, 'test').metrics['loss'] for one in (run, quantize_run(run, spec))]
  assert losses[0] != losses[1] and abs(losses[1] - losses[0]) < 0.02, losses


@pytest.mark.parametrize('scan', [True, False])
def test_the_inputs_of_projections_are_measured(tiny, tmp_path, scan):
  training.train(tiny(**{'training.steps': 1, 'model.scan': scan}), str(tmp_path / 'run'))
  run = runs.load(str(tmp_path / 'run'))
  quantized = quantize_run(run, 'int8(calibrated=True)', batches=2)
  seen = {}

  def spy(module, x):
    path = '/'.join(module.path)
    seen[path] = max(seen.get(path, 0), float(np.abs(x).max()))

  # The inputs of separate layers, by another way than a collection.
  model, params = unroll_layers(run.model, run.params)
  data = runs.open_data(run)
  rows = run.experiment.objective.rows(
    run.experiment.packing, data.tokens('train'), run.config.data.length, None, data.tokenizer
  )
  batches = pipeline.evaluation_batches(rows, run.config.training.batch_size, limit=2)
  with nn.intercept_methods(lambda f, args, kwargs, context: intercept(spy, f, args, kwargs, context)):
    for batch in batches:
      run.experiment.objective.predict(model, params, batch, None, None)
  scales = {
    path.removesuffix('/input_scale'): float(x) * 127.5
    for path, x in leaves_by_path(unroll_layers(quantized.model, quantized.params)[1]).items()
    if path.endswith('input_scale')
  }
  assert len(scales) == 12 and set(scales) == set(seen)
  for path, size in scales.items():
    np.testing.assert_allclose(size, seen[path], rtol=1e-5, err_msg=path)
  losses = [runs.evaluate(one, 'test').metrics['loss'] for one in (run, quantized)]
  assert losses[0] != losses[1] and abs(losses[1] - losses[0]) < 0.02, losses


def intercept(spy, f, args, kwargs, context):
  if type(context.module) is Linear and context.method_name == '__call__':
    spy(context.module, args[0])
  return f(*args, **kwargs)


def test_stored_integers_are_exported(trained, tmp_path, capsys):
  for spec in ('int8', 'int4(group=8)'):
    flags = f'--workdir={trained}', f'--to={tmp_path / spec}', f'--quantization={spec}'
    assert cli.main(['quantize', *flags]) == 0
  flags = ['export', f'--to={tmp_path / "out"}', '--format=safetensors']
  assert cli.main([*flags, f'--workdir={tmp_path / "int8"}']) == 0
  name = 'stack/layers/block_0/mixer/q/kernel'
  assert load_file(tmp_path / 'out' / 'model.safetensors')[name].dtype == np.int8
  assert cli.main([*flags, f'--workdir={tmp_path / "int4(group=8)"}']) == 2
  assert 'is of type int4, which safetensors does not have' in capsys.readouterr().err


def test_what_cannot_be_is_refused(tiny, trained, tmp_path, capsys):
  stored = tmp_path / 'stored'
  assert cli.main(['quantize', f'--workdir={trained}', f'--to={stored}']) == 0
  training.train(tiny(**{'training.steps': 1}), str(tmp_path / 'plain'))
  for words, message in (
    (['quantize', f'--workdir={stored}', f'--to={tmp_path / "x"}'], 'is stored in integers already'),
    (['quantize', f'--workdir={trained}', f'--to={stored}'], 'holds a run; use a new directory'),
    (['quantize', f'--workdir={tmp_path / "plain"}', f'--to={tmp_path / "x"}'], 'set --quantization'),
    (['train', f'--config={stored}/config.json', f'--workdir={tmp_path / "y"}'], 'which have no gradient'),
    (
      ['quantize', f'--workdir={trained}', f'--to={tmp_path / "x"}', '--calibrate=3'],
      '--calibrate=3 has no effect on --quantization=int8; use one with calibrated=True',
    ),
    (
      ['train', f'--config={trained}/config.json', f'--workdir={tmp_path / "y"}']
      + ['--config.model.quantization=int8(calibrated=True)'],
      'has scales of inputs that tfm quantize measures after training',
    ),
    (
      ['train', f'--config={trained}/config.json', f'--workdir={tmp_path / "y"}']
      + ['--config.model.quantization=int8(weights_only=True, calibrated=True)'],
      'leave one out',
    ),
    (
      ['train', f'--config={trained}/config.json', f'--workdir={tmp_path / "y"}']
      + [f'--config.init_from={stored}'],
      'stores integers, which cannot be trained',
    ),
  ):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
