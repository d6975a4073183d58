"""Phi with random settings."""

import pytest

import tfm
from tests.oracle import published
from tfm.hf import from_config


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=64,
  hidden_size=48,
  intermediate_size=40,
  num_hidden_layers=2,
  num_attention_heads=6,
  layer_norm_eps=1e-3,
)


def rotary(**parameters):
  return dict(
    rope_parameters=dict(rope_type='default', rope_theta=10_000.0, partial_rotary_factor=0.5) | parameters
  )


@pytest.mark.parametrize(
  'settings',
  [
    dict(num_key_value_heads=2, hidden_act='gelu', **rotary(partial_rotary_factor=0.25, rope_theta=500.0)),
    dict(num_key_value_heads=1, qk_layernorm=True, num_hidden_layers=3),
    dict(tie_word_embeddings=True, layer_norm_eps=1e-5, **rotary(rope_type='linear', factor=2.0)),
    # As of 80 channels 0.4 in the largest.
    dict(hidden_size=40, num_attention_heads=2, **rotary(partial_rotary_factor=0.4)),
  ],
)
def test_phi(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(transformers.PhiForCausalLM, transformers.PhiConfig(**SMALL | settings), tmp_path)


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.PhiModel, transformers.PhiConfig(**SMALL), tmp_path, field='last_hidden_state', writes=False
  )


def test_older_files(tmp_path):
  """Rotations under their older names, half of each head by default."""
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(
    transformers.PhiForCausalLM, transformers.PhiConfig(**SMALL, **rotary(rope_theta=500.0))
  )
  theirs.save_pretrained(tmp_path)
  arguments = published.make_inputs(61)
  for report in (dict(partial_rotary_factor=None), dict(partial_rotary_factor=0.5)):
    published.rewrite_config(
      tmp_path, rope_parameters=None, rope_theta=500.0, rope_scaling=None, num_key_value_heads=None, **report
    )
    published.assert_close(
      tfm.from_pretrained(str(tmp_path)).logits(**arguments),
      published.run_hf_model(theirs, arguments),
      arguments['attention_mask'],
    )


@pytest.mark.parametrize('field, value', [('head_dim', 16), ('hidden_act', 'tanh')])
def test_what_is_not_understood_is_refused_by_name(field, value):
  fields = SMALL | dict(model_type='phi', architectures=['PhiForCausalLM']) | {field: value}
  with pytest.raises(ValueError, match=f'{field}={value!r}'):
    from_config.load_families()['phi'].read(fields)
