"""GPT-NeoX with random settings."""

import pytest

import tfm
from tests.oracle import published


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
    rope_parameters=dict(rope_type='default', rope_theta=10_000.0, partial_rotary_factor=0.25) | parameters
  )


@pytest.mark.parametrize(
  'settings',
  [
    dict(hidden_size=32, num_attention_heads=4),
    dict(
      use_parallel_residual=False,
      hidden_act='gelu_new',
      tie_word_embeddings=True,
      **rotary(partial_rotary_factor=1.0),
    ),
    dict(attention_bias=False, num_hidden_layers=3, **rotary(rope_theta=500.0, partial_rotary_factor=0.5)),
    dict(hidden_act='gelu_fast', **rotary(rope_type='linear', factor=3.0)),
  ],
)
def test_gpt_neox(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.GPTNeoXConfig(**SMALL | settings)
  published.check_family(transformers.GPTNeoXForCausalLM, config, tmp_path)


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.GPTNeoXConfig(**SMALL)
  published.check_family(transformers.GPTNeoXModel, config, tmp_path, field='last_hidden_state', writes=False)


def test_older_files(tmp_path):
  """Rotations under their older names, without the fields of later versions."""
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(
    transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**SMALL, **rotary(rope_theta=500.0))
  )
  theirs.save_pretrained(tmp_path)
  arguments = published.make_inputs(61)
  expected = published.run_hf_model(theirs, arguments)
  published.rewrite_config(
    tmp_path,
    rope_parameters=None,
    rotary_emb_base=500,
    rotary_pct=0.25,
    use_parallel_residual=None,
    attention_bias=None,
    tie_word_embeddings=None,
  )
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments), expected, arguments['attention_mask']
  )
  published.rewrite_config(tmp_path, rope_theta=500.0, partial_rotary_factor=0.25)
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments), expected, arguments['attention_mask']
  )
  published.rewrite_config(tmp_path, rope_theta=600.0)
  with pytest.raises(ValueError, match='rope_theta=600.0 is not supported with rotary_emb_base=500'):
    tfm.from_pretrained(str(tmp_path))
