"""Qwen3 with random settings: head widths of their own, biases, windows."""

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
    dict(tie_word_embeddings=True, rope_parameters=dict(rope_type='default', rope_theta=1e6)),
    dict(attention_bias=True, head_dim=8, num_key_value_heads=1),
    dict(use_sliding_window=True, sliding_window=4, max_window_layers=1, num_hidden_layers=3),
  ],
)
def test_qwen3(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  _, theirs = published.check_family(
    transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**SMALL | settings), tmp_path
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


def test_a_model_without_an_output_and_an_older_file(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.Qwen3Config(**SMALL)
  _, theirs = published.check_family(
    transformers.Qwen3Model, config, tmp_path, field='last_hidden_state', writes=False
  )
  published.rewrite_config(
    tmp_path / 'theirs', layer_types=None, rope_parameters=None, rope_theta=10_000.0, rope_scaling=None
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 20, field='last_hidden_state')


@pytest.mark.parametrize(
  'field, value',
  [('layer_types', ['sliding_attention']), ('rope_scaling', {'rope_type': 'cubic', 'factor': 2.0})],
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.Qwen3Config(**SMALL | dict(num_hidden_layers=1))
  published.build_hf_model(transformers.Qwen3ForCausalLM, config).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value, 'rope_parameters': None})
  with pytest.raises(ValueError, match='layer_types|rope_type'):
    tfm.from_pretrained(str(tmp_path))
