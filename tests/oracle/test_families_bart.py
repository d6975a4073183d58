"""BART with random settings."""

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
)
SETTINGS = [
  dict(),
  dict(scale_embedding=True, activation_function='relu', pad_token_id=0, decoder_start_token_id=4),
  dict(
    encoder_layers=3,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=8,
    encoder_ffn_dim=40,
    decoder_ffn_dim=56,
    activation_function='gelu_new',
  ),
]


@pytest.mark.parametrize('settings', SETTINGS, ids=str)
def test_bart(settings, tmp_path):
  """Of texts as long as they may be, too."""
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.BartConfig(**SMALL | settings)
  _, theirs = published.check_family(
    transformers.BartForConditionalGeneration, config, tmp_path, arguments=published.make_pairs()
  )
  arguments = published.make_pairs(40, 40)
  published.assert_close(
    tfm.from_pretrained(str(tmp_path / 'theirs')).logits(**arguments),
    published.run_hf_model(theirs, arguments),
  )


def test_older_files(tmp_path):
  """What `facebook/bart-large-cnn` and its descendants have besides; and a table under several names."""
  from safetensors.numpy import load_file, save_file

  import tfm

  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(
    transformers.BartForConditionalGeneration, transformers.BartConfig(**SMALL)
  )
  theirs.save_pretrained(tmp_path)
  published.rewrite_config(
    tmp_path,
    add_bias_logits=False,
    add_final_layer_norm=False,
    classif_dropout=0.0,
    extra_pos_embeddings=2,
    force_bos_token_to_be_generated=True,
    forced_bos_token_id=0,
    normalize_before=False,
    normalize_embedding=True,
    num_hidden_layers=2,
    static_position_embeddings=False,
    task_specific_params={},
    _num_labels=3,
    dtype=None,
    torch_dtype='float32',
    tie_word_embeddings=None,
    no_repeat_ngram_size=3,
    output_past=True,
    prefix=' ',
  )
  stored = load_file(tmp_path / 'model.safetensors')
  table = stored.pop('model.shared.weight')
  save_file(
    stored | {'model.encoder.embed_tokens.weight': table, 'lm_head.weight': table},
    tmp_path / 'model.safetensors',
  )
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**published.make_pairs()),
    published.run_hf_model(theirs, published.make_pairs()),
  )
  save_file(
    stored | {'model.shared.weight': table, 'lm_head.weight': 2 * table}, tmp_path / 'model.safetensors'
  )
  with pytest.raises(ValueError, match="'model.shared.weight' and 'lm_head.weight', which differ"):
    tfm.from_pretrained(str(tmp_path))


def test_without_an_output(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.BartModel,
    transformers.BartConfig(**SMALL),
    tmp_path,
    arguments=published.make_pairs(),
    field='last_hidden_state',
    writes=False,
  )


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(normalize_before=True), 'normalize_before=True'),
    (dict(normalize_embedding=False), 'normalize_embedding=False'),
    (dict(tie_word_embeddings=False), 'tie_word_embeddings=False'),
    (dict(num_hidden_layers=3), 'num_hidden_layers=3 contradicts encoder_layers=2'),
    (
      dict(architectures=['BartForSequenceClassification']),
      "architectures='BartForSequenceClassification' is not supported",
    ),
    (dict(activation_function='mish'), "activation_function='mish'"),
  ],
)
def test_what_is_not_understood_is_refused_by_name(fields, sentence, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.BartForConditionalGeneration, transformers.BartConfig(**SMALL)
  ).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **fields)
  with pytest.raises(ValueError, match=sentence):
    tfm.from_pretrained(str(tmp_path))
