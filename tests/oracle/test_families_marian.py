"""Marian with random settings."""

import numpy as np
import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  max_position_embeddings=40,
  d_model=32,
  encoder_layers=2,
  decoder_layers=2,
  encoder_attention_heads=4,
  decoder_attention_heads=4,
  encoder_ffn_dim=48,
  decoder_ffn_dim=48,
  forced_eos_token_id=None,
  pad_token_id=60,
  decoder_start_token_id=60,
  activation_function='swish',
  scale_embedding=True,
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(),
    dict(
      encoder_layers=3,
      decoder_layers=1,
      encoder_attention_heads=2,
      decoder_attention_heads=8,
      encoder_ffn_dim=40,
      decoder_ffn_dim=56,
      activation_function='relu',
    ),
    dict(
      scale_embedding=False, activation_function='gelu', d_model=24, encoder_attention_heads=3, eos_token_id=2
    ),
  ],
  ids=str,
)
def test_marian(settings, tmp_path):
  """Of texts as long as they may be, too."""
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.MarianConfig(**SMALL | settings)
  _, theirs = published.check_family(
    transformers.MarianMTModel, config, tmp_path, arguments=published.make_pairs()
  )
  arguments = published.make_pairs(40, 40)
  published.assert_close(
    tfm.from_pretrained(str(tmp_path / 'theirs')).logits(**arguments),
    published.run_hf_model(theirs, arguments),
  )


@pytest.mark.parametrize(
  'settings',
  [
    dict(decoder_vocab_size=50, pad_token_id=49, decoder_start_token_id=49),
    dict(d_model=24, encoder_attention_heads=3),
  ],
  ids=str,
)
def test_vocabularies_of_their_own(settings, tmp_path):
  from tfm.hf import export

  transformers = pytest.importorskip('transformers')
  config = transformers.MarianConfig(**SMALL | dict(share_encoder_decoder_embeddings=False) | settings)
  arguments = published.make_pairs(vocab=61)
  arguments['decoder_input_ids'] %= config.decoder_vocab_size
  ours, _ = published.check_family(transformers.MarianMTModel, config, tmp_path, arguments=arguments)
  assert (ours.vocab, ours.source_vocab) == (config.decoder_vocab_size, 61)
  with pytest.raises(
    ValueError, match="'bart' cannot say what the config says: .*a vocabulary of their own|config.model"
  ):
    export.to_pretrained(
      ours.config,
      ours.params,
      str(tmp_path / 'other'),
      'bart',
      ours.vocab,
      ours.ids,
      ours.output,
      ours.source_vocab,
    )


def test_older_files(tmp_path):
  """Further fields of OPUS-MT; and its sines and cosines, stored."""
  from safetensors.numpy import load_file, save_file

  import tfm

  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.MarianMTModel, transformers.MarianConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  published.rewrite_config(
    tmp_path,
    _num_labels=3,
    add_bias_logits=False,
    add_final_layer_norm=False,
    bad_words_ids=[[60]],
    bos_token_id=0,
    classif_dropout=0.0,
    classifier_dropout=0.0,
    max_length=512,
    normalize_before=False,
    normalize_embedding=False,
    num_beams=4,
    num_hidden_layers=2,
    static_position_embeddings=True,
    tie_word_embeddings=None,
    decoder_vocab_size=None,
    share_encoder_decoder_embeddings=None,
  )
  waves = {
    f'model.{side}.embed_positions.weight': getattr(theirs.model, side).embed_positions.weight.numpy()
    for side in ('encoder', 'decoder')
  }
  save_file(load_file(tmp_path / 'model.safetensors') | waves, tmp_path / 'model.safetensors')
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**published.make_pairs()),
    published.run_hf_model(theirs, published.make_pairs()),
  )
  save_file(
    load_file(tmp_path / 'model.safetensors') | {name: np.roll(x, 1, 0) for name, x in waves.items()},
    tmp_path / 'model.safetensors',
  )
  with pytest.raises(ValueError, match="embed_positions.weight' differs from its family's constant"):
    tfm.from_pretrained(str(tmp_path))


def test_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.MarianModel,
    transformers.MarianConfig(**SMALL),
    tmp_path,
    arguments=published.make_pairs(),
    field='last_hidden_state',
    writes=False,
  )


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(share_encoder_decoder_embeddings=False), "no tensor 'model.(de|en)coder.embed_tokens.weight'"),
    (dict(decoder_vocab_size=50), 'decoder_vocab_size=50'),
    (dict(normalize_embedding=True), 'normalize_embedding=True'),
    (dict(encoder_rotary=True), 'encoder_rotary=True'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(fields, sentence, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(transformers.MarianMTModel, transformers.MarianConfig(**SMALL)).save_pretrained(
    tmp_path
  )
  published.rewrite_config(tmp_path, **fields)
  with pytest.raises(ValueError, match=sentence):
    tfm.from_pretrained(str(tmp_path))
