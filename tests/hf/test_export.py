"""Our models export as a published family if the family supports them, however the config is written."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import tfm
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.hf import export, from_config, model_inputs
from tfm.training import state


LLAMA = dict(
  layers=2,
  width=32,
  heads=4,
  kv_heads=2,
  norm='rmsnorm',
  feed_forward='swiglu',
  feed_forward_width=48,
  tie_embeddings=False,
)
GEMMA2 = LLAMA | dict(
  layers=4,
  norm_placement='sandwich',
  scale_embeddings=True,
  output_soft_cap=5.0,
  mixer='softmax(soft_cap=3.0)',
  pattern=('local', 'global', 'local', 'global'),
  blocks={'local': dict(mask='causal & window(left=2)'), 'global': dict(kernel='dense')},
)
MIXTRAL = LLAMA | dict(
  feed_forward='mixture_of_experts(experts=3)', depth_scaled=False, dropout=dict(residual=0.1)
)


def build(fields, vocab=61, initialize=lambda init: jax.jit(init)()):
  config = resolve_config(complete(dict(model=fields, data=dict(length=32))))
  model = from_config.build_model(config, vocab)
  return config, model, nn.unbox(initialize(lambda: state.init_params(model, jax.random.key(0), 1, 16)))


@pytest.mark.parametrize(
  'fields, family',
  [
    (LLAMA, 'llama'),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        (LLAMA, 'mistral'),
        (LLAMA | dict(mixer="softmax(biases='qkv')"), 'qwen2'),
        (LLAMA | dict(bias=True, scan=False), 'llama'),
        (LLAMA | dict(mixer="softmax(qk_norm='rmsnorm(epsilon=1e-06)')"), 'qwen3'),
        (GEMMA2, 'gemma2'),
        (MIXTRAL, 'mixtral'),
      )
    ),
  ],
)
def test_export_and_import_give_equal_logits(fields, family, tmp_path):
  config, model, params = build(fields)
  export.to_pretrained(config, params, str(tmp_path), family, 61)
  ids = np.random.default_rng(0).integers(0, 61, (2, 12))
  expected = jax.jit(
    lambda params: model.apply({'params': params}, ids, model_inputs.build_context(ids, None))[0]
  )(params)
  np.testing.assert_allclose(tfm.from_pretrained(str(tmp_path)).logits(ids), expected, atol=1e-5)


@pytest.mark.parametrize(
  'fields, family, message',
  [
    (LLAMA | dict(norm='layernorm'), 'llama', 'model.norm'),
    (LLAMA | dict(mask='causal & window(3)'), 'llama', 'model.mask'),
    (LLAMA | dict(mixer="softmax(biases='q')"), 'llama', 'model.mixer'),
    (LLAMA | dict(bias=True), 'mistral', 'model.bias'),
    (LLAMA | dict(mixer='softmax(sinks=True)'), 'mistral', 'model.mixer'),
    (LLAMA, 'gemma', 'model.feed_forward|scale_embeddings'),
    # config.json has the length of the run, which published code uses as the original length.
    (
      LLAMA | dict(position='rope(scaling="dynamic(factor=2.0, original=64)")'),
      'llama',
      'model.position: .*original=64.*original=32',
    ),
    (GEMMA2 | dict(norm_placement='pre'), 'gemma2', 'model.norm_placement'),
    (
      GEMMA2
      | dict(blocks={'local': dict(mask='causal & window(2)'), 'global': dict(mask='causal & window(5)')}),
      'gemma2',
      'windows',
    ),
    (
      MIXTRAL | dict(feed_forward='mixture_of_experts(experts=3, normalize=False)'),
      'mixtral',
      'model.feed_forward',
    ),
    (
      MIXTRAL | dict(feed_forward='mixture_of_experts(experts=3, balance_bias=True)'),
      'mixtral',
      'model.feed_forward',
    ),
  ],
)
def test_unsupported_fields_are_rejected_by_name(fields, family, message, tmp_path):
  config, _, params = build(fields, initialize=jax.eval_shape)
  with pytest.raises(ValueError, match=message):
    export.to_pretrained(config, params, str(tmp_path), family, 61)
  assert not list(tmp_path.iterdir())
