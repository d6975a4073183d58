"""Gemma and Gemma 2 with random settings: head widths of their own, caps, windows, odd numbers of layers."""

import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=64,
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  head_dim=12,
  rms_norm_eps=1e-3,
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(num_key_value_heads=1),
    dict(attention_bias=True, head_dim=8, num_key_value_heads=4, tie_word_embeddings=False),
    dict(
      hidden_act='gelu',
      num_hidden_layers=3,
      rope_parameters=dict(rope_type='linear', rope_theta=1e5, factor=2.0),
    ),
  ],
)
def test_gemma(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  _, theirs = published.check_family(
    transformers.GemmaForCausalLM, transformers.GemmaConfig(**SMALL | settings), tmp_path
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


@pytest.mark.parametrize(
  'settings',
  [
    dict(sliding_window=3, attn_logit_softcapping=2.0, final_logit_softcapping=1.5, query_pre_attn_scalar=24),
    dict(
      sliding_window=5,
      num_hidden_layers=3,
      query_pre_attn_scalar=12,
      attention_bias=True,
      tie_word_embeddings=False,
    ),
    dict(
      sliding_window=4,
      attn_logit_softcapping=None,
      final_logit_softcapping=None,
      query_pre_attn_scalar=7,
      layer_types=['full_attention', 'sliding_attention', 'sliding_attention', 'full_attention'],
      num_hidden_layers=4,
    ),
    dict(sliding_window=4, num_hidden_layers=1, hidden_activation='silu', num_key_value_heads=1),
    dict(layer_types=['full_attention'] * 2),
  ],
)
def test_gemma2(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  _, theirs = published.check_family(
    transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**SMALL | settings), tmp_path
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


def test_models_without_an_output_and_older_files(tmp_path):
  transformers = pytest.importorskip('transformers')
  old = dict(
    rope_parameters=None,
    rope_theta=10_000.0,
    layer_types=None,
    use_bidirectional_attention=None,
    attention_bias=None,
  )
  for cls, config, its in (
    (
      transformers.GemmaModel,
      transformers.GemmaConfig(**SMALL),
      dict(hidden_act='gelu', hidden_activation=None),
    ),
    (transformers.GemmaModel, transformers.GemmaConfig(**SMALL), dict(hidden_activation='gelu_pytorch_tanh')),
    (
      transformers.Gemma2Model,
      transformers.Gemma2Config(**SMALL, sliding_window=4),
      dict(hidden_act='gelu_pytorch_tanh', cache_implementation='hybrid', sliding_window_size=4),
    ),
  ):
    _, theirs = published.check_family(cls, config, tmp_path, field='last_hidden_state', writes=False)
    published.rewrite_config(tmp_path / 'theirs', **old | its)
    published.check_long_text(theirs, tmp_path / 'theirs', 20, field='last_hidden_state')


@pytest.mark.parametrize(
  'name, field, value',
  [
    ('Gemma', 'hidden_activation', 'gelu'),
    ('Gemma', 'use_bidirectional_attention', True),
    ('Gemma2', 'sliding_window', None),
    ('Gemma2', 'sliding_window_size', 7),
    ('Gemma2', 'query_pre_attn_scalar', 0),
    ('Gemma2', 'use_bidirectional_attention', True),
  ],
)
def test_what_is_not_understood_is_refused_by_name(name, field, value, tmp_path):
  import json

  import tfm

  transformers = pytest.importorskip('transformers')
  config = getattr(transformers, f'{name}Config')(**SMALL)
  published.build_hf_model(getattr(transformers, f'{name}ForCausalLM'), config).save_pretrained(tmp_path)
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
  with pytest.raises(ValueError, match=field):
    tfm.from_pretrained(str(tmp_path))
