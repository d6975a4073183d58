"""Mixtral with random settings: experts, how many of them a token activates, windows."""

import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=64,
  hidden_size=32,
  intermediate_size=20,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  rms_norm_eps=1e-3,
  num_local_experts=4,
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(num_experts_per_tok=3, num_local_experts=5, sliding_window=4),
    dict(
      num_local_experts=8, head_dim=12, tie_word_embeddings=True, hidden_act='gelu', router_jitter_noise=0.1
    ),
  ],
)
def test_mixtral(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  _, theirs = published.check_family(
    transformers.MixtralForCausalLM, transformers.MixtralConfig(**SMALL | settings), tmp_path
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 40)


def test_a_model_without_an_output_and_an_older_file(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.MixtralConfig(**SMALL)
  _, theirs = published.check_family(
    transformers.MixtralModel, config, tmp_path, field='last_hidden_state', writes=False
  )
  published.rewrite_config(
    tmp_path / 'theirs', rope_parameters=None, rope_theta=1e6, head_dim=None, num_experts_per_tok=None
  )
  published.check_long_text(theirs, tmp_path / 'theirs', 20, field='last_hidden_state')


@pytest.mark.parametrize('field, value', [('hidden_act', 'mish'), ('num_shared_experts', 1)])
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.MixtralConfig(**SMALL | dict(num_hidden_layers=1))
  published.build_hf_model(transformers.MixtralForCausalLM, config).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'{field}='):
    tfm.from_pretrained(str(tmp_path))
