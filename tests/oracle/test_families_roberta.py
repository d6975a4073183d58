"""RoBERTa and its kin with random settings: the answers of the published implementation, and back again."""

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


def build_inputs(pad=1, left=False):
  """Padded rows, of which one holds an id of padding that the mask shows."""
  arguments = published.make_inputs(61, left=left)
  ids = np.where(arguments['attention_mask'], arguments['input_ids'], pad)
  ids[0, 4] = pad
  return arguments | dict(input_ids=ids)


@pytest.mark.parametrize(
  'cls, settings, field, left',
  [
    ('RobertaForMaskedLM', dict(hidden_act='relu', type_vocab_size=1), 'logits', True),
    ('RobertaForMaskedLM', dict(num_attention_heads=2, num_hidden_layers=3, pad_token_id=0), 'logits', False),
    ('RobertaModel', dict(pad_token_id=3), 'last_hidden_state', True),
    ('RobertaForSequenceClassification', dict(num_labels=3), 'logits', False),
    ('RobertaForTokenClassification', dict(num_labels=5), 'logits', True),
    ('XLMRobertaForMaskedLM', dict(type_vocab_size=1), 'logits', False),
    ('CamembertForMaskedLM', dict(type_vocab_size=1), 'logits', False),
  ],
)
def test_roberta(cls, settings, field, left, tmp_path):
  """Padding has a position of its own, and the others are counted without it."""
  transformers = pytest.importorskip('transformers')
  reference = getattr(transformers, cls)
  reference = published.WithoutPooler(reference) if cls == 'RobertaModel' else reference
  config = reference.config_class(**SMALL | settings)
  published.check_family(
    reference, config, tmp_path, arguments=build_inputs(config.pad_token_id, left), field=field, writes=False
  )


def test_an_output_of_its_own(tmp_path):
  transformers = pytest.importorskip('transformers')
  config = transformers.RobertaConfig(**SMALL, tie_word_embeddings=False)
  ours, theirs = published.check_family(
    transformers.RobertaForMaskedLM, config, tmp_path, arguments=build_inputs(), writes=False, reload=False
  )
  reloaded, report = published.export_and_reload(ours, transformers.RobertaForMaskedLM, tmp_path / 'ours')
  assert report['missing_keys'] == {'lm_head.bias'} and not report['unexpected_keys']  # which nothing reads
  np.testing.assert_allclose(
    published.run_hf_model(reloaded, build_inputs()),
    published.run_hf_model(theirs, build_inputs()),
    atol=1e-6,
  )


def test_the_longest_row(tmp_path):
  """Positions are fewer than rows of the table."""
  import tfm

  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.RobertaForMaskedLM, transformers.RobertaConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  ours, ids = tfm.from_pretrained(str(tmp_path)), np.random.default_rng(0).integers(5, 61, (2, 38))
  published.assert_close(ours.logits(ids), published.run_hf_model(theirs, dict(input_ids=ids)))
  with pytest.raises(ValueError, match='reach position 38; the model has 38 positions'):
    ours.logits(np.full((1, 39), 7))


@pytest.mark.parametrize('field, value', [('position_embedding_type', 'relative_key'), ('adapter', 3)])
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.RobertaForMaskedLM, transformers.RobertaConfig(**SMALL)
  ).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=f'{field}=.?{value}'):
    tfm.from_pretrained(str(tmp_path))
