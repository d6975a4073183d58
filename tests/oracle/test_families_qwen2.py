"""Qwen2 with random settings: windows for the upper layers, for those that are named, and for none."""

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
  rms_norm_eps=1e-3,
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(
      tie_word_embeddings=True,
      sliding_window=4,
      max_window_layers=0,
      rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    dict(use_sliding_window=True, sliding_window=4, max_window_layers=1, num_hidden_layers=3),
    dict(use_sliding_window=True, sliding_window=5, max_window_layers=0, num_key_value_heads=4),
    dict(
      use_sliding_window=True,
      sliding_window=3,
      num_hidden_layers=4,
      layer_types=['sliding_attention', 'full_attention'] * 2,
    ),
    dict(
      rope_parameters=dict(rope_type='yarn', rope_theta=1e6, factor=4.0, original_max_position_embeddings=16)
    ),
  ],
)
def test_qwen2(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  _, theirs = published.check_family(
    transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**SMALL | settings), tmp_path
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


def test_an_older_file_names_no_layers(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.Qwen2Config(
    **SMALL | dict(num_hidden_layers=3), use_sliding_window=True, sliding_window=4, max_window_layers=1
  )
  ours, theirs = published.check_family(
    transformers.Qwen2Model, config, tmp_path, field='last_hidden_state', writes=False
  )
  assert ours.config.model.pattern == ('full', 'sliding', 'sliding')
  published.rewrite_config(tmp_path / 'theirs', layer_types=None, rope_parameters=None, rope_theta=10_000.0)
  published.check_long_text(theirs, tmp_path / 'theirs', 20, field='last_hidden_state')


@pytest.mark.parametrize(
  'field, value',
  [
    ('layer_types', ['sliding_attention']),
    ('layer_types', ['chunked_attention']),
    ('layer_types', ['full_attention'] * 2),
    ('dual_chunk_attention_config', {}),
  ],
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.Qwen2Config(**SMALL | dict(num_hidden_layers=1))
  published.build_hf_model(transformers.Qwen2ForCausalLM, config).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'config.json: {field}'):
    tfm.from_pretrained(str(tmp_path))
