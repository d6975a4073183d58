"""BLOOM with random settings."""

import pytest

import tfm
from tests.oracle import published
from tfm.hf import from_config


pytestmark = pytest.mark.oracle
SMALL = dict(vocab_size=61, hidden_size=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-3)


@pytest.mark.parametrize(
  'settings',
  [
    dict(hidden_size=48, n_head=6),
    dict(hidden_size=36, n_head=3, n_layer=3, tie_word_embeddings=False),
    dict(n_head=1, layer_norm_epsilon=1e-5),
    dict(apply_residual_connection_post_layernorm=True),
  ],
)
def test_bloom(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.BloomForCausalLM, transformers.BloomConfig(**SMALL | settings), tmp_path
  )


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.BloomModel,
    transformers.BloomConfig(**SMALL),
    tmp_path,
    field='last_hidden_state',
    writes=False,
  )


def test_older_files(tmp_path):
  """Sizes under their older names, beside fields of the training."""
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.BloomForCausalLM, transformers.BloomConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  arguments = published.make_inputs(61)
  published.rewrite_config(
    tmp_path,
    n_layer=None,
    num_hidden_layers=2,
    hidden_size=None,
    n_embed=32,
    n_head=None,
    num_attention_heads=4,
    offset_alibi=100,
    n_inner=4096,
    skip_bias_add=True,
    attention_softmax_in_fp32=True,
  )
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments),
    published.run_hf_model(theirs, arguments),
    arguments['attention_mask'],
  )


def test_what_is_not_understood_is_refused_by_name():
  fields = SMALL | dict(model_type='bloom', architectures=['BloomForCausalLM'])
  family = from_config.load_families()['bloom']
  family.read(fields)
  with pytest.raises(ValueError, match='hidden_size=32 contradicts n_embed=48'):
    family.read(fields | dict(n_embed=48))
