"""Falcon with random settings: its generations, and what stands between them."""

import pytest

import tfm
from tests.oracle import published
from tfm.hf import from_config
from tfm.hf.families import falcon


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=64,
  hidden_size=48,
  num_hidden_layers=2,
  num_attention_heads=6,
  layer_norm_epsilon=1e-3,
)
NEW = dict(new_decoder_architecture=True)


@pytest.mark.parametrize(
  'settings',
  [
    # As of 7, 40, 11, 1 billion parameters.
    dict(multi_query=True, ffn_hidden_size=40),
    dict(**NEW, num_kv_heads=2),
    dict(
      **NEW,
      num_kv_heads=3,
      num_ln_in_parallel_attn=1,
      rope_parameters=dict(rope_type='default', rope_theta=500.0),
    ),
    dict(multi_query=False, parallel_attn=False, alibi=True, bias=True),
    dict(
      multi_query=True,
      parallel_attn=False,
      bias=True,
      activation='gelu_new',
      tie_word_embeddings=False,
      num_hidden_layers=3,
    ),
    dict(**NEW, num_kv_heads=1, bias=True, alibi=True, layer_norm_epsilon=1e-5),
    dict(
      multi_query=False,
      num_attention_heads=4,
      rope_parameters=dict(rope_type='linear', rope_theta=1e4, factor=2.0),
    ),
  ],
)
def test_falcon(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.FalconForCausalLM, transformers.FalconConfig(**SMALL | settings), tmp_path
  )


def test_penalties_of_a_long_text(tmp_path):
  """Beyond the positions that bfloat16 distinguishes."""
  import numpy as np

  transformers = pytest.importorskip('transformers')
  config = transformers.FalconConfig(**SMALL, alibi=True, bias=True, parallel_attn=False, multi_query=False)
  theirs = published.build_hf_model(transformers.FalconForCausalLM, config)
  theirs.save_pretrained(tmp_path)
  ids = np.random.default_rng(0).integers(5, 61, (1, 400))
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(ids), published.run_hf_model(theirs, dict(input_ids=ids))
  )


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.FalconConfig(**SMALL)
  published.check_family(transformers.FalconModel, config, tmp_path, field='last_hidden_state', writes=False)


def test_older_files(tmp_path):
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.FalconForCausalLM, transformers.FalconConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  arguments = published.make_inputs(61)
  published.rewrite_config(
    tmp_path,
    rope_parameters=None,
    num_kv_heads=None,
    num_ln_in_parallel_attn=None,
    ffn_hidden_size=None,
    activation=None,
    max_position_embeddings=None,
    hidden_size=None,
    n_embed=48,
    num_attention_heads=None,
    n_head=6,
    num_hidden_layers=None,
    n_layer=2,
    apply_residual_connection_post_layernorm=False,
  )
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments),
    published.run_hf_model(theirs, arguments),
    arguments['attention_mask'],
  )


@pytest.mark.parametrize(
  'changed, expected_message',
  [
    (
      dict(**NEW, parallel_attn=False),
      'parallel_attn=False is not supported with new_decoder_architecture=True',
    ),
    (
      dict(num_ln_in_parallel_attn=2),
      'num_ln_in_parallel_attn=2 is not supported with new_decoder_architecture=False',
    ),
    (dict(multi_query=False, num_kv_heads=2), 'num_kv_heads=2 is not supported'),
    (dict(apply_residual_connection_post_layernorm=True), 'apply_residual_connection_post_layernorm=True'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(changed, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    from_config.load_families()['falcon'].read(
      SMALL | dict(model_type='falcon', architectures=['FalconForCausalLM']) | changed
    )


def test_grouped_heads_need_a_parallel_residual():
  with pytest.raises(
    ValueError, match="kv_heads=2 is not supported by the family with residual='sequential'; use 1 or 4"
  ):
    falcon.write_structure({'model.heads': 4, 'model.kv_heads': 2, 'model.residual': 'sequential'})
