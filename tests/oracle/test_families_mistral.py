"""Mistral with random settings: windows shorter than the text, and none."""

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
    dict(sliding_window=3),
    dict(sliding_window=8, head_dim=12, num_key_value_heads=1, tie_word_embeddings=True),
    dict(
      sliding_window=None,
      num_hidden_layers=3,
      hidden_act='gelu',
      rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
  ],
)
def test_mistral(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  _, theirs = published.check_family(
    transformers.MistralForCausalLM, transformers.MistralConfig(**SMALL | settings), tmp_path
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


def test_a_model_without_an_output_and_an_older_file(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.MistralConfig(**SMALL, sliding_window=4)
  _, theirs = published.check_family(
    transformers.MistralModel, config, tmp_path, field='last_hidden_state', writes=False
  )
  published.rewrite_config(tmp_path / 'theirs', rope_parameters=None, rope_theta=10_000.0, head_dim=None)
  published.check_long_text(theirs, tmp_path / 'theirs', 20, field='last_hidden_state')


@pytest.mark.parametrize(
  'field, value', [('sliding_window', 0), ('hidden_act', 'mish'), ('layer_types', ['full_attention'])]
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.MistralConfig(**SMALL | dict(num_hidden_layers=1))
  published.build_hf_model(transformers.MistralForCausalLM, config).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'{field}='):
    tfm.from_pretrained(str(tmp_path))
