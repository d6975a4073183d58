"""GPT-BigCode with random settings."""

import pytest

from tests.oracle import published
from tfm.hf import from_config
from tfm.hf.families import gpt_bigcode


pytestmark = pytest.mark.oracle
SMALL = dict(vocab_size=61, n_positions=48, n_embd=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-3)


@pytest.mark.parametrize(
  'settings',
  [
    dict(multi_query=True, n_inner=40, activation_function='gelu'),
    dict(multi_query=False, n_embd=48, n_head=6),
    dict(multi_query=True, n_layer=3, tie_word_embeddings=False, activation_function='relu'),
  ],
)
def test_gpt_bigcode(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.GPTBigCodeForCausalLM, transformers.GPTBigCodeConfig(**SMALL | settings), tmp_path
  )


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.GPTBigCodeConfig(**SMALL)
  published.check_family(
    transformers.GPTBigCodeModel, config, tmp_path, field='last_hidden_state', writes=False
  )


@pytest.mark.parametrize('field, value', [('scale_attn_weights', False), ('add_cross_attention', True)])
def test_what_is_not_understood_is_refused_by_name(field, value):
  fields = SMALL | dict(model_type='gpt_bigcode', architectures=['GPTBigCodeForCausalLM']) | {field: value}
  with pytest.raises(ValueError, match=f'{field}={value}'):
    from_config.load_families()['gpt_bigcode'].read(fields)


def test_grouped_heads_are_not_supported():
  """All heads share, or none."""
  with pytest.raises(ValueError, match='model.kv_heads=2 is not supported by the family; use 1 or 4'):
    gpt_bigcode.write_multi_query({'model.heads': 4, 'model.kv_heads': 2})
