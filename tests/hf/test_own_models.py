"""Our models export as a family that supports them, and import again."""

import jax
import numpy as np
import pytest
from flax import linen as nn

import tfm
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.hf import export, from_config, model_inputs
from tfm.training import state


COMMON = dict(layers=2, width=32, heads=4)
OWN = {
  'gpt_neox': dict(bias=True, position='rope(fraction=0.25)', residual='parallel', tie_embeddings=False),
  'gptj': dict(
    bias=True,
    mixer='softmax(biases="")',
    position='rope(fraction=0.5, interleaved=True)',
    output_bias=True,
    residual='parallel_one_norm',
    feed_forward='gelu_tanh',
  ),
  'bloom': dict(bias=True, position='alibi', feed_forward='gelu_tanh', embedding_norm=True),
  'mpt': dict(position='alibi', norm='layernorm(1e-6)', score='dot(0.3)'),
  'falcon': dict(kv_heads=2, residual='parallel', norm='layernorm(bias=True)', feed_forward_width=48),
  'gpt_bigcode': dict(bias=True, kv_heads=1, position='learned'),
  'opt': dict(
    bias=True, position='learned(before=2)', feed_forward='relu', embedding_width=16, norm_placement='post'
  ),
  'phi': dict(
    bias=True,
    residual='parallel_one_norm',
    output_bias=True,
    tie_embeddings=False,
    mixer='softmax(qk_norm="layernorm(epsilon=1e-05)")',
  ),
  'mamba': dict(mixer='mamba', position='none', feed_forward='none', norm='rmsnorm'),
  'mamba2': dict(
    mixer='mamba2(16, expand=3)', position='none', feed_forward='none', norm='rmsnorm(1e-5)', kv_heads=2
  ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'family, changed',
  [(family, {}) for family in OWN]
  + [
    # More position rows than the length.
    ('gpt_bigcode', dict(position='learned(rows=40)')),
    ('opt', dict(position='learned(rows=40, before=2)')),
  ],
  ids=str,
)
def test_export_and_import_give_equal_logits(family, changed, tmp_path):
  config = resolve_config(complete(dict(model=COMMON | OWN[family] | changed, data=dict(length=24))))
  model = from_config.build_model(config, 50)
  boxed = jax.jit(lambda key: state.init_params(model, key, 1, 8))(jax.random.key(0))
  params = jax.tree.map(
    lambda x: x + 0.1 * np.random.default_rng(1).standard_normal(x.shape, np.float32), nn.unbox(boxed)
  )
  export.to_pretrained(config, params, str(tmp_path), family, 50)
  ids = np.random.default_rng(0).integers(0, 50, (2, 9))
  expected = jax.jit(
    lambda params: model.apply({'params': params}, ids, model_inputs.build_context(ids, None))[0]
  )(params)
  np.testing.assert_allclose(tfm.from_pretrained(str(tmp_path)).logits(ids), expected, atol=1e-5)


@pytest.mark.parametrize(
  'family, changed, message',
  [
    (
      'gpt_neox',
      dict(residual='parallel_one_norm'),
      "config.model.residual='parallel_one_norm' has no config.json value",
    ),
    ('gpt_neox', dict(norm='layernorm(bias=False)'), 'norm'),
    (
      'gpt_neox',
      dict(norm_placement='sandwich', residual='sequential'),
      "model.norm_placement: 'sandwich' → 'pre'",
    ),
    ('gptj', dict(position='rope(fraction=0.5)'), 'model.position'),
    ('gptj', dict(output_bias=False), 'model.output_bias: False → True'),
    ('bloom', dict(position='alibi(exponent=4)'), 'model.position'),
    ('bloom', dict(feed_forward_width=48), 'model.feed_forward_width'),
    ('mpt', dict(score='cosine'), 'model.score'),
    ('falcon', dict(position='alibi'), 'model.position'),
    ('gpt_bigcode', dict(kv_heads=2), 'model.kv_heads=2'),
    ('opt', dict(position='learned'), 'model.position'),
    ('phi', dict(canon='A'), "model.canon: 'A' → ''"),
    ('phi', dict(residual='sequential'), "model.residual: 'sequential' → 'parallel_one_norm'"),
    ('mamba', dict(mixer='mamba2'), 'mamba2'),
    ('mamba2', dict(head_width=9), 'model.head_width=9'),
  ],
)
def test_unsupported_fields_are_rejected_by_name(family, changed, message, tmp_path):
  config = resolve_config(complete(dict(model=COMMON | OWN[family] | changed, data=dict(length=24))))
  with pytest.raises(ValueError, match=message):
    export.to_pretrained(config, {}, str(tmp_path), family, 50)
