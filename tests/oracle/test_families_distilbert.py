"""DistilBERT with random settings: the answers of the published implementation, and back again."""

import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SMALL = dict(vocab_size=61, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40)


@pytest.mark.parametrize(
  'cls, settings, field, left',
  [
    ('DistilBertForMaskedLM', dict(activation='relu', tie_word_embeddings=False), 'logits', True),
    ('DistilBertForMaskedLM', dict(n_heads=2, n_layers=3, sinusoidal_pos_embds=True), 'logits', False),
    ('DistilBertModel', dict(), 'last_hidden_state', True),
    ('DistilBertForSequenceClassification', dict(num_labels=3), 'logits', False),
    ('DistilBertForTokenClassification', dict(num_labels=5), 'logits', True),
  ],
)
def test_distilbert(cls, settings, field, left, tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.DistilBertConfig(**SMALL | settings)
  published.check_family(
    getattr(transformers, cls),
    config,
    tmp_path,
    arguments=published.make_inputs(61, left=left),
    field=field,
    writes=False,
  )


def test_types_are_refused(tmp_path):
  """There are none; what is given and not read is not ignored."""
  import numpy as np

  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.DistilBertModel, transformers.DistilBertConfig(**SMALL)
  ).save_pretrained(tmp_path)
  ids = np.full((1, 4), 7)
  with pytest.raises(ValueError, match="token_type_ids is not an input of model_type='distilbert'"):
    tfm.from_pretrained(str(tmp_path)).logits(ids, token_type_ids=0 * ids)


@pytest.mark.parametrize(
  'field, value', [('tie_weights_', False), ('activation', 'mish'), ('n_languages', 3)]
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.DistilBertModel, transformers.DistilBertConfig(**SMALL)
  ).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'{field}=.?{value}'):
    tfm.from_pretrained(str(tmp_path))
