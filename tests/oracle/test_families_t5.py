"""T5 1.0, 1.1 and mT5 with random settings."""

import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  d_model=32,
  d_kv=8,
  d_ff=48,
  num_layers=2,
  num_heads=4,
  layer_norm_epsilon=1e-3,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=20,
  decoder_start_token_id=0,
)


@pytest.mark.parametrize(
  'settings',
  [
    dict(),
    dict(
      num_decoder_layers=3,
      num_heads=3,
      d_kv=10,
      relative_attention_num_buckets=32,
      relative_attention_max_distance=128,
    ),
    dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False),  # as 5.x has it: tied and not scaled
    dict(feed_forward_proj='gated-silu', num_layers=3, num_decoder_layers=1),
  ],
  ids=str,
)
def test_t5(settings, tmp_path):
  """Of texts longer than the distances that have their own bucket, too."""
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.T5Config(**SMALL | settings)
  # The published cache has the layers of the encoder, so a decoder of more cannot write.
  _, theirs = published.check_family(
    transformers.T5ForConditionalGeneration,
    config,
    tmp_path,
    arguments=published.make_pairs(),
    writes=config.num_decoder_layers <= config.num_layers,
  )
  arguments = published.make_pairs(60, 50)
  published.assert_close(
    tfm.from_pretrained(str(tmp_path / 'theirs')).logits(**arguments),
    published.run_hf_model(theirs, arguments),
  )


def untied(cls, config, folder):
  """The published model with an output of its own, as it is read from a checkpoint of one."""
  import torch
  from safetensors.torch import load_file, save_file

  model = published.build_hf_model(cls, config)
  model.save_pretrained(folder)
  stored = load_file(folder / 'model.safetensors')
  assert 'lm_head.weight' not in stored
  torch.manual_seed(1)
  stored['lm_head.weight'] = 0.1 * torch.randn(config.vocab_size, config.d_model)
  save_file(stored, folder / 'model.safetensors', metadata=dict(format='pt'))


@pytest.mark.parametrize(
  'kind, settings, aliases',
  [
    (
      'T5',
      dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False),
      dict(
        tie_word_embeddings=False,
        scale_decoder_outputs=None,
        dense_act_fn=None,
        is_gated_act=None,
        n_positions=512,
      ),
    ),
    ('T5', dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False), dict()),
    ('T5', dict(), dict()),
    ('MT5', dict(num_decoder_layers=1), dict(tie_word_embeddings=False)),
    ('MT5', dict(num_heads=6, d_kv=4), dict()),
  ],
  ids=str,
)
def test_an_output_of_its_own(kind, settings, aliases, tmp_path):
  """Whatever config.json states of the tie, the tensors are there: in the form of 5.x, and of older files."""
  import tfm

  transformers = pytest.importorskip('transformers')
  cls, config = (
    getattr(transformers, f'{kind}ForConditionalGeneration'),
    getattr(transformers, f'{kind}Config'),
  )
  untied(cls, config(**SMALL | settings), tmp_path / 'theirs')
  published.rewrite_config(tmp_path / 'theirs', **aliases)
  theirs, ours = (
    cls.from_pretrained(tmp_path / 'theirs').eval(),
    tfm.from_pretrained(str(tmp_path / 'theirs')),
  )
  assert not ours.config.model.tie_embeddings
  expected = published.run_hf_model(theirs, published.make_pairs())
  published.assert_close(ours.logits(**published.make_pairs()), expected)
  published.check_generation(ours, theirs, published.make_inputs(61, 1))
  reloaded, report = published.export_and_reload(ours, cls, tmp_path / 'ours')
  assert not any(report[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), report
  published.assert_close(published.run_hf_model(reloaded, published.make_pairs()), expected, tolerance=1e-6)
  published.assert_same_parameters(theirs, reloaded)


@pytest.mark.parametrize('kind', ['T5', 'MT5'])
def test_without_an_output(kind, tmp_path):
  transformers = pytest.importorskip('transformers')
  config = getattr(transformers, f'{kind}Config')(**SMALL)
  published.check_family(
    getattr(transformers, f'{kind}Model'),
    config,
    tmp_path,
    arguments=published.make_pairs(),
    field='last_hidden_state',
    writes=False,
  )


def test_tied_multilingual(tmp_path):
  transformers = pytest.importorskip('transformers')
  published.check_family(
    transformers.MT5ForConditionalGeneration,
    transformers.MT5Config(**SMALL),
    tmp_path,
    arguments=published.make_pairs(),
  )


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      dict(feed_forward_proj='gated-tanh', dense_act_fn=None, is_gated_act=None),
      "feed_forward_proj='gated-tanh'",
    ),
    (dict(architectures=['T5EncoderModel']), "architectures='T5EncoderModel' is not supported"),
    (dict(is_encoder_decoder=False), 'is_encoder_decoder=False'),
    (dict(layerdrop=0.5), 'layerdrop=0.5'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(fields, sentence, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.T5ForConditionalGeneration, transformers.T5Config(**SMALL)
  ).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **fields)
  with pytest.raises(ValueError, match=sentence):
    tfm.from_pretrained(str(tmp_path))
