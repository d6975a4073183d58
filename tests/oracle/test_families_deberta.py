"""DeBERTa with random settings: the answers of the published implementation, and back again."""

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
  relative_attention=True,
  position_biased_input=False,
)
BOTH = ['p2c', 'c2p']


def build_inputs(left=False):
  """Rows beyond the distances that have their own bucket."""
  ids = np.random.default_rng(0).integers(5, 61, (3, 30))
  mask = np.ones_like(ids)
  mask[1, 20:], mask[2, 4:] = 0, 0
  mask = mask[:, ::-1] if left else mask
  return dict(input_ids=ids, attention_mask=np.ascontiguousarray(mask))


@pytest.mark.parametrize(
  'cls, settings, left',
  [
    ('DebertaForMaskedLM', dict(pos_att_type=BOTH, type_vocab_size=2), True),
    (
      'DebertaForMaskedLM',
      dict(pos_att_type=['c2p'], max_relative_positions=9, num_attention_heads=2),
      False,
    ),
    ('DebertaModel', dict(pos_att_type=['p2c'], max_relative_positions=7), True),
    (
      'DebertaForSequenceClassification',
      dict(relative_attention=False, position_biased_input=True, num_labels=3),
      False,
    ),
    ('DebertaForTokenClassification', dict(pos_att_type=BOTH, num_labels=5, num_hidden_layers=3), True),
    (
      'DebertaV2ForMaskedLM',
      dict(pos_att_type=BOTH, share_att_key=True, position_buckets=8, norm_rel_ebd='layer_norm'),
      True,
    ),
    ('DebertaV2ForMaskedLM', dict(relative_attention=False, pos_att_type=None, type_vocab_size=2), False),
    (
      'DebertaV2Model',
      dict(pos_att_type=['p2c'], share_att_key=True, max_relative_positions=20, position_buckets=6),
      True,
    ),
    (
      'DebertaV2ForMaskedLM',
      dict(pos_att_type=BOTH, share_att_key=True, conv_kernel_size=3, conv_act='gelu'),
      True,
    ),
    (
      'DebertaV2Model',
      dict(pos_att_type=BOTH, share_att_key=True, conv_kernel_size=5, num_hidden_layers=1),
      True,
    ),
    (
      'DebertaV2ForSequenceClassification',
      dict(pos_att_type=['c2p'], share_att_key=True, num_labels=3, pooler_hidden_act='tanh'),
      False,
    ),
    (
      'DebertaV2ForTokenClassification',
      dict(pos_att_type=['p2c'], norm_rel_ebd='layer_norm', num_labels=5),
      False,
    ),
  ],
)
def test_deberta(cls, settings, left, tmp_path):
  transformers = pytest.importorskip('transformers')
  reference = getattr(transformers, cls)
  field = 'last_hidden_state' if cls.endswith('Model') else 'logits'
  published.check_family(
    reference,
    reference.config_class(**SMALL | settings),
    tmp_path,
    arguments=build_inputs(left),
    field=field,
    writes=False,
  )


def test_projections_of_positions(tmp_path, caplog):
  """Those of keys have a bias that nothing depends on; it is left out."""
  transformers = pytest.importorskip('transformers')
  config = transformers.DebertaV2Config(**SMALL, pos_att_type=BOTH, position_buckets=8)
  ours, theirs = published.check_family(
    transformers.DebertaV2ForMaskedLM, config, tmp_path, arguments=build_inputs(), writes=False, reload=False
  )
  assert 'pos_key_proj.bias' in caplog.text
  reloaded, report = published.export_and_reload(ours, transformers.DebertaV2ForMaskedLM, tmp_path / 'ours')
  assert (
    all(name.endswith('pos_key_proj.bias') for name in report['missing_keys'])
    and not report['unexpected_keys']
  )
  arguments, mask = build_inputs(), build_inputs()['attention_mask'] > 0
  np.testing.assert_allclose(
    published.run_hf_model(reloaded, arguments)[mask],
    published.run_hf_model(theirs, arguments)[mask],
    atol=1e-5,
  )


@pytest.mark.parametrize('cls', ['DebertaForMaskedLM', 'DebertaV2ForMaskedLM'])
def test_the_other_names_of_the_output(cls, tmp_path):
  transformers = pytest.importorskip('transformers')
  reference = getattr(transformers, cls)
  published.check_family(
    reference,
    reference.config_class(**SMALL, pos_att_type=BOTH, legacy=False),
    tmp_path,
    arguments=build_inputs(),
    writes=False,
    reload=False,
  )


def test_older_files(tmp_path):
  """Terms in one string, and no class: hidden states."""
  import tfm

  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(
    transformers.DebertaForMaskedLM, transformers.DebertaConfig(**SMALL, pos_att_type=BOTH)
  )
  theirs.save_pretrained(tmp_path)
  published.rewrite_config(
    tmp_path, pos_att_type='c2p|p2c', architectures=None, padding_idx=0, pad_token_id=None
  )
  arguments = build_inputs()
  expected = published.run_hf_model(theirs.deberta, arguments, 'last_hidden_state')
  published.assert_close(
    tfm.from_pretrained(str(tmp_path)).logits(**arguments), expected, arguments['attention_mask']
  )


@pytest.mark.parametrize(
  'field, value',
  [
    ('conv_kernel_size', 4),
    ('norm_rel_ebd', 'rms'),
    ('position_biased_input', True),
    ('pos_att_type', 'c2p|p2p'),
    ('embedding_size', 16),
    ('relative_attention', False),
  ],
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import re

  import tfm

  transformers = pytest.importorskip('transformers')
  config = transformers.DebertaV2Config(**SMALL, pos_att_type=BOTH, share_att_key=True)
  published.build_hf_model(transformers.DebertaV2ForMaskedLM, config).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=re.escape(f'{field}=') + '.?' + re.escape(str(value))):
    tfm.from_pretrained(str(tmp_path))
