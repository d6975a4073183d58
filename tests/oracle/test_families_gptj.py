"""GPT-J with random settings."""

import pytest

from tests.oracle import published
from tfm.hf import from_config


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61, n_positions=48, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, layer_norm_epsilon=1e-3
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(n_inner=40),
    dict(n_layer=3, n_head=2, rotary_dim=16, activation_function='gelu', layer_norm_epsilon=1e-5),
    dict(n_embd=48, n_head=6, rotary_dim=6, tie_word_embeddings=True),
  ],
)
def test_gptj(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(transformers.GPTJForCausalLM, transformers.GPTJConfig(**SMALL | settings), tmp_path)


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.GPTJModel,
    transformers.GPTJConfig(**SMALL),
    tmp_path,
    field='last_hidden_state',
    writes=False,
  )


@pytest.mark.parametrize(
  'field, value', [('rotary_dim', None), ('rotary', False), ('scale_attn_weights', False)]
)
def test_what_is_not_understood_is_refused_by_name(field, value):
  fields = SMALL | dict(model_type='gptj', architectures=['GPTJForCausalLM']) | {field: value}
  with pytest.raises(ValueError, match=f'{field}={value}'):
    from_config.load_families()['gptj'].read(fields)
