"""config.json of published encoder-decoders; nothing is allocated."""

import pathlib

import pytest

from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.hf import export, from_config


T5_BASE = dict(
  architectures=['T5ForConditionalGeneration'],
  d_ff=3072,
  d_kv=64,
  d_model=768,
  decoder_start_token_id=0,
  dropout_rate=0.1,
  eos_token_id=1,
  initializer_factor=1.0,
  is_encoder_decoder=True,
  layer_norm_epsilon=1e-6,
  model_type='t5',
  n_positions=512,
  num_heads=12,
  num_layers=12,
  output_past=True,
  pad_token_id=0,
  relative_attention_num_buckets=32,
  task_specific_params=dict(summarization=dict(max_length=200)),
  vocab_size=32_128,
)
T5_11_BASE = T5_BASE | dict(
  d_ff=2048,
  feed_forward_proj='gated-gelu',
  tie_word_embeddings=False,
  num_decoder_layers=12,
  dropout_rate=0.0,
)
MT5_SMALL = dict(
  architectures=['MT5ForConditionalGeneration'],
  d_ff=1024,
  d_kv=64,
  d_model=512,
  decoder_start_token_id=0,
  dropout_rate=0.1,
  eos_token_id=1,
  feed_forward_proj='gated-gelu',
  initializer_factor=1.0,
  is_encoder_decoder=True,
  layer_norm_epsilon=1e-6,
  model_type='mt5',
  num_decoder_layers=8,
  num_heads=6,
  num_layers=8,
  pad_token_id=0,
  relative_attention_num_buckets=32,
  tie_word_embeddings=False,
  tokenizer_class='T5Tokenizer',
  vocab_size=250_112,
)
BART_CNN = dict(
  _num_labels=3,
  activation_dropout=0.0,
  activation_function='gelu',
  add_final_layer_norm=False,
  architectures=['BartForConditionalGeneration'],
  attention_dropout=0.0,
  bos_token_id=0,
  classif_dropout=0.0,
  classifier_dropout=0.0,
  d_model=1024,
  decoder_attention_heads=16,
  decoder_ffn_dim=4096,
  decoder_layerdrop=0.0,
  decoder_layers=12,
  decoder_start_token_id=2,
  dropout=0.1,
  early_stopping=True,
  encoder_attention_heads=16,
  encoder_ffn_dim=4096,
  encoder_layerdrop=0.0,
  encoder_layers=12,
  eos_token_id=2,
  force_bos_token_to_be_generated=True,
  forced_bos_token_id=0,
  forced_eos_token_id=2,
  gradient_checkpointing=False,
  id2label={'0': 'LABEL_0'},
  init_std=0.02,
  is_encoder_decoder=True,
  label2id={'LABEL_0': 0},
  length_penalty=2.0,
  max_length=142,
  max_position_embeddings=1024,
  min_length=56,
  model_type='bart',
  no_repeat_ngram_size=3,
  normalize_before=False,
  num_beams=4,
  num_hidden_layers=12,
  output_past=True,
  pad_token_id=1,
  prefix=' ',
  scale_embedding=False,
  use_cache=True,
  vocab_size=50_264,
)
OPUS_MT = dict(
  _num_labels=3,
  activation_dropout=0.0,
  activation_function='swish',
  add_bias_logits=False,
  add_final_layer_norm=False,
  architectures=['MarianMTModel'],
  attention_dropout=0.0,
  bad_words_ids=[[58_100]],
  bos_token_id=0,
  classif_dropout=0.0,
  classifier_dropout=0.0,
  d_model=512,
  decoder_attention_heads=8,
  decoder_ffn_dim=2048,
  decoder_layerdrop=0.0,
  decoder_layers=6,
  decoder_start_token_id=58_100,
  decoder_vocab_size=58_101,
  dropout=0.1,
  encoder_attention_heads=8,
  encoder_ffn_dim=2048,
  encoder_layerdrop=0.0,
  encoder_layers=6,
  eos_token_id=0,
  forced_eos_token_id=0,
  init_std=0.02,
  is_encoder_decoder=True,
  max_length=512,
  max_position_embeddings=512,
  model_type='marian',
  normalize_before=False,
  normalize_embedding=False,
  num_beams=4,
  num_hidden_layers=6,
  pad_token_id=58_100,
  scale_embedding=True,
  share_encoder_decoder_embeddings=True,
  static_position_embeddings=True,
  use_cache=True,
  vocab_size=58_101,
)


def read(fields):
  return from_config.config_from_hf(from_config.find_family(fields, pathlib.Path()), fields)


@pytest.mark.parametrize('fields, name', [(T5_BASE, 'base'), (T5_11_BASE, '1.1-base')], ids=['1.0', '1.1'])
def test_configs_t5_is_the_published_t5(fields, name, root):
  """The config.json written for configs/t5.py equals the published one and describes the whole model."""
  config = resolve_config(load_config(f'{root}/configs/t5.py:{name}'))
  family = from_config.load_families()['t5']
  written = family.write(
    'vocabulary', dict(leaves(config)) | {'vocab': 32_128, 'ids.start': 0, 'ids.eos': 1, 'ids.pad': 0}
  )
  assert {field: written[field] for field in fields if field in written} == {
    field: value for field, value in fields.items() if field in written
  }
  assert fields.keys() - written.keys() <= {'initializer_factor', 'output_past', 'task_specific_params'}
  export.validate_round_trip(config, family, written, 32_128)
  config.model.encoder.position = 't5(buckets=16, bidirectional=True)'
  with pytest.raises(ValueError, match=r"a different model: .*model.encoder.position: 't5\(buckets=16"):
    export.validate_round_trip(config, family, written, 32_128)


@pytest.mark.parametrize(
  'fields, expected, ids',
  [
    (
      MT5_SMALL,
      {
        'model.layers': 8,
        'model.heads': 6,
        'model.tie_embeddings': False,
        'model.feed_forward': 'geglu_tanh',
        'model.scale_embeddings': False,
      },
      dict(start=0, eos=1, pad=0),
    ),
    (
      BART_CNN,
      {
        'model.layers': 12,
        'model.position': 'learned(rows=1024)',
        'model.feed_forward': 'gelu',
        'model.embedding_norm': True,
        'model.scale_embeddings': False,
      },
      dict(start=2, eos=2, pad=1),
    ),
    (
      OPUS_MT,
      {
        'model.layers': 6,
        'model.position': 'sinusoidal(interleaved=False)',
        'model.feed_forward': 'silu',
        'model.embedding_norm': False,
        'model.scale_embeddings': True,
      },
      dict(start=58_100, eos=0, pad=58_100),
    ),
  ],
  ids=['mt5', 'bart', 'marian'],
)
def test_published_fields(fields, expected, ids):
  config, output, special_ids, vocab, source_vocab = read(fields)
  flat = dict(leaves(config))
  assert {path: flat[path] for path in expected} == expected
  assert (output, special_ids, vocab, source_vocab) == ('vocabulary', ids, fields['vocab_size'], 0)
  assert config.model.encoder.layers == fields.get('encoder_layers', fields.get('num_layers'))
