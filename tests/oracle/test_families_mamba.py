"""Mamba and Mamba-2 with random settings."""

import numpy as np
import pytest

import tfm
from tests.oracle import published
from tfm.hf import from_config


pytestmark = pytest.mark.oracle
SMALL = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, state_size=5, layer_norm_epsilon=1e-3)
SECOND = SMALL | dict(num_heads=8, head_dim=8, n_groups=2, chunk_size=4)


@pytest.mark.parametrize(
  'settings',
  [
    dict(),
    dict(expand=3, conv_kernel=2, use_conv_bias=False, time_step_rank=5, num_hidden_layers=3),
    dict(tie_word_embeddings=False, layer_norm_epsilon=1e-5, state_size=16),
  ],
)
def test_mamba(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.MambaForCausalLM, transformers.MambaConfig(**SMALL | settings), tmp_path
  )


@pytest.mark.parametrize(
  'settings',
  [
    dict(n_groups=1),
    dict(num_heads=6, head_dim=16, expand=3, conv_kernel=3, use_conv_bias=False, tie_word_embeddings=True),
    # As many groups as heads, more than the model itself has.
    dict(num_heads=4, head_dim=16, n_groups=4, num_hidden_layers=3, layer_norm_epsilon=1e-5),
  ],
)
def test_mamba2(settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.Mamba2ForCausalLM, transformers.Mamba2Config(**SECOND | settings), tmp_path
  )


@pytest.mark.parametrize('cls, settings', [('Mamba', SMALL), ('Mamba2', SECOND)])
def test_biases(cls, settings, tmp_path):
  """Padding on the left, which projections with biases do not leave at zero, is not compared."""
  transformers = pytest.importorskip('transformers')
  config = getattr(transformers, f'{cls}Config')(**settings, use_bias=True)
  reference = getattr(transformers, f'{cls}ForCausalLM')
  ours, theirs = published.check_family(reference, config, tmp_path, writes=False)
  ids = np.random.default_rng(1).integers(5, 61, (2, 7))
  published.check_generation(ours, theirs, dict(input_ids=ids, attention_mask=np.ones_like(ids)))


@pytest.mark.parametrize('cls, settings', [('Mamba', SMALL), ('Mamba2', SECOND)])
def test_a_model_without_an_output(cls, settings, tmp_path):
  transformers = pytest.importorskip('transformers')
  config = getattr(transformers, f'{cls}Config')(**settings)
  published.check_family(
    getattr(transformers, f'{cls}Model'), config, tmp_path, field='last_hidden_state', writes=False
  )


def test_older_files(tmp_path):
  """Sizes twice, under the names of the authors' code too."""
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.MambaForCausalLM, transformers.MambaConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  arguments = published.make_inputs(61)
  published.rewrite_config(
    tmp_path,
    d_model=32,
    d_inner=64,
    n_layer=2,
    fused_add_norm=True,
    rms_norm=True,
    ssm_cfg={},
    use_conv_bias=None,
    pad_vocab_size_multiple=8,
    tie_word_embeddings=None,
    time_step_rank='auto',
  )
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments),
    published.run_hf_model(theirs, arguments),
    arguments['attention_mask'],
  )


@pytest.mark.parametrize(
  'changed, expected_message',
  [
    (dict(model_type='mamba', hidden_act='gelu'), "hidden_act='gelu'"),
    (dict(model_type='mamba', rms_norm=False), 'rms_norm=False'),
    (dict(model_type='mamba2', **SECOND, time_step_limit=[0.0, 0.1]), r'time_step_limit=\[0.0, 0.1\]'),
    (dict(model_type='mamba2', **SECOND | dict(num_heads=7)), 'num_heads=7 is not supported .*; use 8'),
    (dict(model_type='mamba2', **SECOND, hidden_act='gelu'), "hidden_act='gelu'"),
  ],
)
def test_what_is_not_understood_is_refused_by_name(changed, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    from_config.load_families()[changed['model_type']].read(SMALL | changed)
