"""BERT with random settings: the answers of the published implementation, and back again."""

import numpy as np
import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(
  vocab_size=61,
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=48,
  max_position_embeddings=40,
  layer_norm_eps=1e-3,
)


def build_inputs(seed=0, left=False):
  """Padded rows with tokens of two types."""
  arguments = published.make_inputs(61, seed, left)
  return arguments | dict(
    token_type_ids=np.random.default_rng(seed).integers(0, 2, arguments['input_ids'].shape)
  )


@pytest.mark.parametrize(
  'cls, settings, field, left',
  [
    ('BertForMaskedLM', dict(hidden_act='relu', type_vocab_size=3), 'logits', True),
    (
      'BertForMaskedLM',
      dict(num_attention_heads=2, num_hidden_layers=3, hidden_act='gelu_new', layer_norm_eps=1e-12),
      'logits',
      False,
    ),
    ('BertModel', dict(), 'last_hidden_state', True),
    ('BertForSequenceClassification', dict(num_labels=3), 'logits', False),
    ('BertForTokenClassification', dict(num_labels=5), 'logits', True),
  ],
)
def test_bert(cls, settings, field, left, tmp_path):
  """Padding on the left, too, has positions."""
  transformers = pytest.importorskip('transformers')
  reference = getattr(transformers, cls)
  reference = published.WithoutPooler(reference) if cls == 'BertModel' else reference
  published.check_family(
    reference,
    transformers.BertConfig(**SMALL | settings),
    tmp_path,
    arguments=build_inputs(left=left),
    field=field,
    writes=False,
  )


def test_an_output_of_its_own(tmp_path):
  """Published models of this kind have two biases, of which one is read."""
  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.BertConfig(**SMALL, tie_word_embeddings=False)
  ours, theirs = published.check_family(
    transformers.BertForMaskedLM, config, tmp_path, arguments=build_inputs(), writes=False, reload=False
  )
  reloaded, report = published.export_and_reload(ours, transformers.BertForMaskedLM, tmp_path / 'ours')
  assert report['missing_keys'] == {'cls.predictions.bias'} and not report['unexpected_keys']
  np.testing.assert_allclose(
    published.run_hf_model(reloaded, build_inputs()),
    published.run_hf_model(theirs, build_inputs()),
    atol=1e-6,
  )
  assert tfm.from_pretrained(str(tmp_path / 'ours')).config.model.tie_embeddings is False


def test_what_no_output_needs_is_left_out_and_logged(tmp_path, caplog):
  import tfm

  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.BertForPreTraining, transformers.BertConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  ours = tfm.from_pretrained(str(tmp_path))
  assert 'bert.pooler.dense.bias' in caplog.text and 'cls.seq_relationship.weight' in caplog.text
  arguments = build_inputs()
  expected = published.run_hf_model(theirs, arguments, 'prediction_logits')
  published.assert_close(ours.logits(**arguments), expected, arguments['attention_mask'])


def test_a_class_does_not_depend_on_padding(tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.BertForSequenceClassification, transformers.BertConfig(**SMALL)
  ).save_pretrained(tmp_path)
  with pytest.raises(ValueError, match='attention_mask hides the first id'):
    tfm.from_pretrained(str(tmp_path)).logits(**build_inputs(left=True))


def test_rows_longer_than_the_table_are_refused(tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(transformers.BertModel, transformers.BertConfig(**SMALL)).save_pretrained(tmp_path)
  with pytest.raises(ValueError, match='reach position 40; the model has 40 positions'):
    tfm.from_pretrained(str(tmp_path)).logits(np.ones((1, 41), np.int32))


@pytest.mark.parametrize(
  'field, value', [('position_embedding_type', 'relative_key'), ('is_decoder', True), ('hidden_act', 'mish')]
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(transformers.BertForMaskedLM, transformers.BertConfig(**SMALL)).save_pretrained(
    tmp_path
  )
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'{field}=.?{value}'):
    tfm.from_pretrained(str(tmp_path))
