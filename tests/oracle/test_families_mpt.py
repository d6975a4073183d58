"""MPT with random settings."""

import pytest

import tfm
from tests.oracle import published
from tfm.hf import from_config


pytestmark = pytest.mark.oracle
SMALL = dict(vocab_size=61, d_model=32, n_layers=2, n_heads=4, max_seq_len=48, layer_norm_epsilon=1e-3)


@pytest.mark.parametrize(
  'settings',
  [
    dict(d_model=48, n_heads=6),
    dict(d_model=36, n_heads=3, n_layers=3, tie_word_embeddings=False, attn_config=dict(softmax_scale=0.4)),
    dict(n_heads=1, expansion_ratio=2),
  ],
)
def test_mpt(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(transformers.MptForCausalLM, transformers.MptConfig(**SMALL | settings), tmp_path)


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.MptModel, transformers.MptConfig(**SMALL), tmp_path, field='last_hidden_state', writes=False
  )


def test_older_files(tmp_path):
  """As the authors' own code wrote them."""
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.MptForCausalLM, transformers.MptConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  arguments = published.make_inputs(61)
  published.rewrite_config(
    tmp_path,
    architectures=['MPTForCausalLM'],
    tie_word_embeddings=None,
    embedding_fraction=1.0,
    verbose=0,
    attn_config=dict(
      alibi=True,
      alibi_bias_max=8,
      attn_impl='triton',
      attn_pdrop=0,
      attn_type='multihead_attention',
      attn_uses_sequence_id=False,
      clip_qkv=None,
      prefix_lm=False,
      qk_ln=False,
      softmax_scale=None,
    ),
  )
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments),
    published.run_hf_model(theirs, arguments),
    arguments['attention_mask'],
  )


@pytest.mark.parametrize(
  'changed, expected_message',
  [
    (dict(attn_config=dict(clip_qkv=6)), r'clip_qkv=6 is not supported; only None is \(in attn_config\)'),
    (dict(attn_config=dict(alibi=False)), 'alibi=False'),
    (dict(attn_config=dict(alibi_bias_max=16)), 'alibi_bias_max=16'),
    (dict(attn_config=dict(rope=True)), r'rope=True .* \(in attn_config\)'),
    (dict(logit_scale='inv_sqrt_d_model'), "logit_scale='inv_sqrt_d_model'"),
    (dict(norm_type='rmsnorm'), "norm_type='rmsnorm'"),
    (dict(no_bias=False), 'no_bias=False'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(changed, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    from_config.load_families()['mpt'].read(
      SMALL | dict(model_type='mpt', architectures=['MptForCausalLM']) | changed
    )
