"""A model of our own, in the words of our own configs, is written as a family that can say it and read again."""

import jax
import numpy as np
import pytest
from flax import linen as nn

import tfm
from tfm import config as configs
from tfm import pretrained
from tfm.training import state

COMMON = dict(layers=2, width=32, heads=4)
OWN = {
  'gpt_neox': dict(bias=True, position='rope(fraction=0.25)', residual='parallel', tied=False),
  'gptj': dict(bias=True, mixer='softmax(biases="")', position='rope(fraction=0.5, interleaved=True)', output_bias=True,
               residual='parallel_one_norm', feed_forward='gelu_tanh'),
  'bloom': dict(bias=True, position='alibi', feed_forward='gelu_tanh', embedding_norm=True),
  'mpt': dict(position='alibi', norm='layernorm(1e-6)', score='dot(0.3)'),
  'falcon': dict(kv_heads=2, residual='parallel', norm='layernorm(bias=True)', feed_forward_width=48),
  'gpt_bigcode': dict(bias=True, kv_heads=1, position='learned'),
  'opt': dict(bias=True, position='learned(before=2)', feed_forward='relu', embedding_width=16, norm_placement='post'),
  'phi': dict(bias=True, residual='parallel_one_norm', output_bias=True, tied=False, mixer='softmax(qk_norm="layernorm")'),
  'mamba': dict(mixer='mamba', position='none', feed_forward='none', norm='rmsnorm'),
  'mamba2': dict(mixer='mamba2(16, expand=3)', position='none', feed_forward='none', norm='rmsnorm(1e-5)', kv_heads=2),
}


@pytest.mark.parametrize('family', OWN)
def test_there_and_back(family, tmp_path):
  config = configs.resolve(configs.complete(dict(model=COMMON | OWN[family], data=dict(length=24))))
  model = pretrained.model_of(config, 50)
  boxed = jax.jit(lambda key: state.parameters(model, key, 1, 8))(jax.random.key(0))
  params = jax.tree.map(lambda x: x + 0.1 * np.random.default_rng(1).standard_normal(x.shape, np.float32), nn.unbox(boxed))
  pretrained.export(config, params, str(tmp_path), family, 50)
  ids = np.random.default_rng(0).integers(0, 50, (2, 9))
  wanted = model.apply({'params': params}, ids, pretrained.context_of(ids, None))[0]
  np.testing.assert_allclose(tfm.from_pretrained(str(tmp_path)).logits(ids), wanted, atol=1e-5)


@pytest.mark.parametrize('family, said', [
  ('gpt_neox', 'residual'), ('bloom', 'position'), ('mpt', 'position'), ('opt', 'position'), ('mamba', 'mixer'), ('mamba2', 'mixer')])
def test_what_a_family_cannot_say(family, said, tmp_path):
  config = configs.resolve(configs.complete(dict(model=COMMON | dict(residual='parallel_one_norm', norm='layernorm'))))
  with pytest.raises(ValueError, match=said):
    pretrained.export(config, {}, str(tmp_path), family, 50)
