"""LLaMA with random settings, and every scaling of its rotations."""

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
SCALINGS = {
  'linear': dict(factor=3.0),
  'dynamic': dict(factor=2.0),
  'yarn': dict(factor=4.0, original_max_position_embeddings=16),
  'yarn scaled': dict(
    factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.2, beta_fast=8, beta_slow=2
  ),
  'llama3': dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
  'longrope': dict(
    short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.0, 3.0, 4.0], original_max_position_embeddings=16
  ),
}


@pytest.mark.parametrize(
  'settings',
  [
    dict(attention_bias=True, tie_word_embeddings=True),
    dict(mlp_bias=True, head_dim=12, hidden_act='gelu'),
    dict(num_key_value_heads=1, num_hidden_layers=3, rope_theta=500_000.0),
  ],
)
def test_llama(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL | settings), tmp_path
  )


@pytest.mark.parametrize('name', ['dynamic', 'longrope'])
@pytest.mark.parametrize('length', [12, 60, 70])
@pytest.mark.parametrize('beams', [1, 4])
def test_rotations_that_change_while_the_text_grows(name, length, beams, tmp_path):
  """Prompts and continuations within the length of the first training, across it and beyond it."""
  import numpy as np
  import torch

  import tfm

  transformers = pytest.importorskip('transformers')
  parameters = dict(rope_type=name, rope_theta=1000.0, **SCALINGS[name])
  config = transformers.LlamaConfig(**SMALL, rope_parameters=parameters)
  # A model of its own: the published one remembers the longest text that it has read.
  theirs = published.build_hf_model(transformers.LlamaForCausalLM, config)
  theirs.save_pretrained(tmp_path)
  ids, mask = np.random.default_rng(4).integers(5, 61, (2, length)), np.ones((2, length), int)
  mask[1, : length // 2] = 0
  with torch.no_grad():
    expected = theirs.generate(
      torch.as_tensor(ids * mask),
      attention_mask=torch.as_tensor(mask),
      max_new_tokens=24,
      num_beams=beams,
      do_sample=False,
      pad_token_id=0,
      eos_token_id=None,
    )
  ours = tfm.from_pretrained(str(tmp_path)).generate(ids * mask, mask, max_new_tokens=24, num_beams=beams)
  np.testing.assert_array_equal(ours, expected[:, length:])


@pytest.mark.parametrize('name', SCALINGS)
def test_rotations(name, tmp_path):
  """Of a text within the length of the first training, and of one beyond."""
  import numpy as np

  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.LlamaConfig(
    **SMALL, rope_parameters=dict(rope_type=name.split()[0], rope_theta=1000.0, **SCALINGS[name])
  )
  ours, theirs = published.check_family(transformers.LlamaForCausalLM, config, tmp_path)
  ids = np.random.default_rng(3).integers(5, 61, (2, 90 if name == 'dynamic' else 40))
  expected = published.run_hf_model(theirs, dict(input_ids=ids))
  published.assert_close(tfm.from_pretrained(str(tmp_path / 'theirs')).logits(ids), expected)
  published.rewrite_config(
    tmp_path / 'theirs',
    rope_parameters=None,
    rope_theta=1000.0,
    rope_scaling=dict(type=name.split()[0], **SCALINGS[name]),
  )
  published.assert_close(tfm.from_pretrained(str(tmp_path / 'theirs')).logits(ids), expected)
