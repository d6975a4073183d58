"""DeepSeek-V2 with random settings: ranks, widths, dense layers, routing, yarn with its two scales."""

import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=64,
  hidden_size=32,
  intermediate_size=40,
  num_hidden_layers=2,
  num_attention_heads=4,
  rms_norm_eps=1e-3,
  kv_lora_rank=12,
  q_lora_rank=20,
  qk_nope_head_dim=10,
  qk_rope_head_dim=8,
  v_head_dim=6,
  moe_intermediate_size=16,
  n_routed_experts=5,
  num_experts_per_tok=2,
  n_shared_experts=2,
  first_k_dense_replace=1,
  routed_scaling_factor=1.5,
)
YARN = dict(
  rope_type='yarn',
  rope_theta=10_000.0,
  factor=4.0,
  original_max_position_embeddings=16,
  beta_fast=32,
  beta_slow=1,
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(
      q_lora_rank=None,
      v_head_dim=10,
      n_shared_experts=1,
      rope_parameters=YARN | dict(mscale=0.707, mscale_all_dim=0.5),
    ),
    dict(
      first_k_dense_replace=0,
      num_experts_per_tok=3,
      tie_word_embeddings=True,
      hidden_act='gelu',
      topk_method='group_limited_greedy',
      n_group=1,
      topk_group=1,
    ),
  ],
)
def test_deepseek_v2(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.DeepseekV2Config(**SMALL | settings)
  _, theirs = published.check_family(transformers.DeepseekV2ForCausalLM, config, tmp_path)
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


def test_a_model_without_an_output_and_an_older_file(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.DeepseekV2Config(
    **SMALL | dict(num_hidden_layers=3), rope_parameters=YARN | dict(mscale=0.707, mscale_all_dim=0.707)
  )
  _, theirs = published.check_family(
    transformers.DeepseekV2Model, config, tmp_path, field='last_hidden_state', writes=False
  )
  published.rewrite_config(
    tmp_path / 'theirs',
    rope_parameters=None,
    rope_theta=10_000,
    rope_scaling=dict(
      type='yarn',
      factor=4,
      original_max_position_embeddings=16,
      beta_fast=32,
      beta_slow=1,
      mscale=0.707,
      mscale_all_dim=0.707,
    ),
    head_dim=None,
    qk_head_dim=None,
    aux_loss_alpha=0.001,
    seq_aux=True,
    ep_size=1,
    moe_layer_freq=1,
    scoring_func='softmax',
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40, field='last_hidden_state')


@pytest.mark.parametrize(
  'fields, named',
  [
    (dict(topk_method='group_limited_greedy', n_group=5, topk_group=2), 'topk_method'),
    (dict(topk_method='noaux_tc'), 'topk_method'),
    (dict(norm_topk_prob=True), 'norm_topk_prob'),
    (dict(first_k_dense_replace=2), 'first_k_dense_replace'),
    (dict(rope_parameters=YARN | dict(mscale_all_dim=1.0)), 'mscale_all_dim'),
    (dict(attention_bias=True), 'attention_bias'),
    (dict(num_key_value_heads=2), 'num_key_value_heads'),
    (dict(moe_layer_freq=2), 'moe_layer_freq'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(fields, named, tmp_path):
  from tfm.hf import from_config

  transformers = pytest.importorskip('transformers')
  family = from_config.load_families()['deepseek_v2']
  arguments = transformers.DeepseekV2Config(**SMALL).to_dict()
  family.read(arguments)
  with pytest.raises(ValueError, match=f'config.json: .*{named}'):
    family.read(arguments | fields)
