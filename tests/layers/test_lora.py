"""Adapters: the correction by hand, zero at the start, merged into kernels; trained and saved alone."""

import functools
import re

import flax.linen as nn
import jax
import numpy as np
import pytest

import tfm
from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.layers.lora import DOWN, SCALE, UP, Lora, merge_adapters
from tfm.mixers.protocol import Context
from tfm.runs import load, train
from tfm.training import state as states
from tfm.training.gradient_transforms import path_name


pytestmark = pytest.mark.slow
VOCAB = 40
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 12))


def build_adapted(tiny, lora, **fields):
  """(a model, its parameters with adapters, the same with random adapters instead of zeros)."""
  model = Experiment(tiny(**fields)).build_model(VOCAB)
  params = nn.unbox(jax.jit(lambda key: states.init_params(model, key, 1, 12, lora))(jax.random.key(0)))

  def randomize(path, x):
    return (
      0.3 * jax.random.normal(jax.random.key(len(path_name(path))), x.shape)
      if path_name(path).endswith(UP)
      else x
    )

  return model, params, jax.tree_util.tree_map_with_path(randomize, params)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params):
  return model.apply({'params': params}, TOKENS, Context.contiguous(TOKENS))[0]


@pytest.mark.parametrize(
  'fields', [{}, {'model.scan': False, 'model.feed_forward': 'swiglu'}, {'model.kv_heads': 1}]
)
def test_adapters_start_as_zero_and_can_be_merged(tiny, fields):
  model, params, random_params = build_adapted(tiny, Lora(3, 6.0, 'mixer|feed_forward'), **fields)
  plain = nn.unbox(jax.jit(lambda key: states.init_params(model, key, 1, 12))(jax.random.key(0)))
  assert jax.tree.structure(merge_adapters(random_params)) == jax.tree.structure(plain)
  np.testing.assert_array_equal(logits(model, params), logits(model, plain))
  assert np.abs(logits(model, random_params) - logits(model, plain)).max() > 0.1
  np.testing.assert_allclose(
    logits(model, merge_adapters(random_params)), logits(model, random_params), atol=2e-5
  )


def test_correction_by_hand(tiny):
  _, _, random_params = build_adapted(tiny, Lora(3, 6.0, 'mixer/(q|out)/'), **{'model.scan': False})
  block = random_params['stack']['layers_0']['block_0']['mixer']
  assert set(block['q']) == set(block['out']) == {'kernel', DOWN, UP, SCALE} and DOWN not in block['k']
  q, out = block['q'], block['out']
  assert (
    q[DOWN].shape == (32, 3)
    and q[UP].shape == (3, 4, 8)
    and out[DOWN].shape == (4, 8, 3)
    and out[UP].shape == (3, 32)
  )
  merged = merge_adapters(block)
  np.testing.assert_allclose(
    merged['q']['kernel'], q['kernel'] + 2 * np.einsum('dr,rhc->dhc', q[DOWN], q[UP]), rtol=1e-5, atol=1e-6
  )
  np.testing.assert_allclose(
    merged['out']['kernel'],
    out['kernel'] + 2 * np.einsum('hcr,rd->hcd', out[DOWN], out[UP]),
    rtol=1e-5,
    atol=1e-6,
  )
  np.testing.assert_allclose(np.std(q[DOWN]), 32**-0.5, rtol=0.3)


@pytest.mark.parametrize(
  'targets, message',
  [
    ('nowhere', "targets='nowhere' selects no projection"),
    ('feed_forward', 'which is no single projection; exclude it'),
  ],
)
def test_invalid_targets(tiny, targets, message):
  with pytest.raises(ValueError, match=message):
    build_adapted(
      tiny,
      Lora(3, 6.0, targets),
      **{'model.feed_forward': 'mixture_of_experts(experts=2)', 'model.feed_forward_width': 16},
    )


BASE = {
  'model.position': 'learned',
  'model.norm': 'layernorm(1e-5)',
  'model.bias': True,
  'model.feed_forward': 'gelu_tanh',
}


def make_tuned_fields(root):
  return BASE | {
    'init_from': str(root / 'base'),
    'lora.rank': 2,
    'optimizer.learning_rate': 0.05,
    'optimizer.schedule': 'constant',
  }


@pytest.fixture(scope='module')
def folders(tiny, tmp_path_factory):
  """A run, and another that adapts it."""
  root = tmp_path_factory.mktemp('lora')
  train.train(tiny(**BASE), str(root / 'base'))
  train.train(tiny(**make_tuned_fields(root)), str(root / 'whole'))
  return root


def test_only_adapters_are_trained_and_saved(folders):
  base, tuned = (load.load(str(folders / name)) for name in ('base', 'whole'))
  base_params = {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(base.params)}
  trained_names = {
    name
    for path, x in jax.tree_util.tree_leaves_with_path(tuned.params)
    if (name := path_name(path)) not in base_params
    or not (np.asarray(base_params[name]) == np.asarray(x)).all()
  }
  assert trained_names == {
    f'stack/layers/block_0/mixer/{letter}/{name}' for letter in 'qv' for name in (DOWN, UP, SCALE)
  }
  sizes = {
    name: sum(
      path.stat().st_size
      for path in (folders / name / 'checkpoints').rglob('*')
      if path.is_file() and '/params/' in str(path)
    )
    for name in ('base', 'whole')
  }
  assert sizes['whole'] < 0.5 * sizes['base']
  mixer = tuned.params['stack']['layers']['block_0']['mixer']
  assert all(np.abs(mixer[letter][UP]).min(axis=(1, 2, 3)).max() > 0 for letter in 'qv')  # no longer zero


def test_interrupted_training_resumes_exactly(folders, tiny):
  for steps in ({'training.steps': 3}, {}):
    train.train(tiny(**make_tuned_fields(folders) | steps), str(folders / 'pieces'))
  whole, pieces = (load.load(str(folders / name)).params for name in ('whole', 'pieces'))
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(whole), jax.device_get(pieces))


def test_export_merges_adapters(folders):
  assert (
    cli.main(['export', f'--workdir={folders / "whole"}', f'--to={folders / "out"}', '--family=gpt2']) == 0
  )
  tuned, model = load.load(str(folders / 'whole')), tfm.from_pretrained(str(folders / 'out'))
  np.testing.assert_allclose(model.logits(TOKENS), logits(tuned.model, tuned.params), atol=2e-5)


@pytest.mark.parametrize('frozen', ['', 'embedding', 'mixer/q'])
def test_what_is_frozen_besides_leaves_the_others_frozen(tiny, frozen):
  config = tiny(init_from='x')
  config.lora.rank, config.optimizer.frozen = 2, frozen
  is_frozen = re.compile(Experiment(config).frozen_pattern).search
  assert all(map(is_frozen, ('embedding/table', 'stack/0/mixer/q/kernel', f'stack/0/mixer/v/{SCALE}')))
  assert bool(is_frozen(f'stack/0/mixer/q/{DOWN}')) == (frozen == 'mixer/q')
  assert not is_frozen(f'stack/0/mixer/v/{UP}')


def test_lora_requires_a_run_to_adapt(tiny, tmp_path):
  with pytest.raises(
    ValueError,
    match='config.lora.rank=2 adapts the parameters of another run; set config.init_from to its folder',
  ):
    train.train(tiny(**{'lora.rank': 2}), str(tmp_path))


@pytest.mark.parametrize(('field', 'value'), [('targets', 'no/such'), ('alpha', 32.0)])
def test_settings_of_adapters_without_a_rank_are_rejected(tiny, tmp_path, field, value):
  with pytest.raises(
    ValueError, match=f'config.lora.{field}={value!r} has no effect without config.lora.rank'
  ):
    train.train(tiny(**{f'lora.{field}': value}), tmp_path)
