"""GPT-2 with random settings: logits, tokens and beams equal the published implementation."""

import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(
  'settings',
  [
    dict(n_inner=40, activation_function='relu', layer_norm_epsilon=1e-3),
    dict(n_layer=3, n_head=2, tie_word_embeddings=False),
    dict(activation_function='gelu'),
    dict(scale_attn_by_inverse_layer_idx=True, n_layer=3),
    dict(scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True, n_layer=1),
    dict(reorder_and_upcast_attn=True),
  ],
)
def test_gpt2(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.GPT2Config(
    **dict(vocab_size=61, n_positions=48, n_embd=32, n_layer=2, n_head=4) | settings
  )
  published.check_family(transformers.GPT2LMHeadModel, config, tmp_path)


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.GPT2Config(vocab_size=61, n_positions=48, n_embd=32, n_layer=2, n_head=4)
  published.check_family(transformers.GPT2Model, config, tmp_path, field='last_hidden_state', writes=False)


@pytest.mark.parametrize(
  'field, value', [('scale_attn_weights', False), ('rotary', 3), ('add_cross_attention', True)]
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.GPT2Config(vocab_size=61, n_positions=48, n_embd=32, n_layer=1, n_head=4)
  published.build_hf_model(transformers.GPT2LMHeadModel, config).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'{field}={value}'):
    tfm.from_pretrained(str(tmp_path))
