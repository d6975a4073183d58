"""OPT with random settings."""

import pytest

import tfm
from tests.oracle import published
from tfm.hf import from_config


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=32,
  hidden_size=32,
  ffn_dim=40,
  num_hidden_layers=2,
  num_attention_heads=4,
)


@pytest.mark.parametrize(
  'settings',
  [
    # As of 350 million parameters.
    dict(do_layer_norm_before=False, word_embed_proj_dim=12),
    dict(enable_bias=False, layer_norm_elementwise_affine=False, activation_function='gelu'),
    dict(num_attention_heads=2, num_hidden_layers=3, tie_word_embeddings=False),
    dict(do_layer_norm_before=False, layer_norm_elementwise_affine=False, _remove_final_layer_norm=True),
    dict(enable_bias=False, word_embed_proj_dim=48),
  ],
)
def test_opt(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(transformers.OPTForCausalLM, transformers.OPTConfig(**SMALL | settings), tmp_path)


def test_a_model_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.OPTModel, transformers.OPTConfig(**SMALL), tmp_path, field='last_hidden_state', writes=False
  )


def test_the_longest_row_and_names_of_older_files(tmp_path):
  import numpy as np
  from safetensors.numpy import load_file, save_file

  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.OPTForCausalLM, transformers.OPTConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  found = load_file(tmp_path / 'model.safetensors')
  save_file({name.removeprefix('model.'): x for name, x in found.items()}, tmp_path / 'model.safetensors')
  ours, ids = tfm.from_pretrained(str(tmp_path)), np.random.default_rng(0).integers(5, 61, (2, 32))
  published.assert_close(ours.logits(ids), published.run_hf_model(theirs, dict(input_ids=ids)))
  with pytest.raises(ValueError, match='reach position 32; the model has 32 positions'):
    ours.logits(np.full((1, 33), 7))


@pytest.mark.parametrize(
  'changed, expected_message',
  [
    (dict(_remove_final_layer_norm=True), '_remove_final_layer_norm=True is not supported'),
    (
      dict(word_embed_proj_dim=8, tie_word_embeddings=False),
      'word_embed_proj_dim=8 is not supported with tie_word_embeddings',
    ),
    (
      dict(word_embed_proj_dim=8, architectures=['OPTModel']),
      'word_embed_proj_dim=8 is not supported without an output',
    ),
    (dict(alibi=True), 'alibi=True'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(changed, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    from_config.load_families()['opt'].read(
      SMALL | dict(model_type='opt', architectures=['OPTForCausalLM']) | changed
    )
