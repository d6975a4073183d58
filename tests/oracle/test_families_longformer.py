"""Longformer with random settings: the answers of the published implementation, and back again."""

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
  attention_window=4,
)


def build_inputs(left=False, marks=(), pad=1):
  """Rows longer than the windows; the tokens of `marks` are global, the last row's other ones."""
  ids = np.random.default_rng(0).integers(5, 61, (3, 30))
  mask = np.ones_like(ids)
  mask[1, 21:], mask[2, 13:] = 0, 0
  mask = np.ascontiguousarray(mask[:, ::-1]) if left else mask
  arguments = dict(input_ids=np.where(mask, ids, pad), attention_mask=mask)
  if marks:
    seen = np.zeros_like(ids)
    seen[:2, list(marks)], seen[2, 9] = 1, 1
    arguments['global_attention_mask'] = seen
  return arguments


@pytest.mark.parametrize(
  'cls, settings, left, marks',
  [
    ('LongformerForMaskedLM', dict(attention_window=[4, 8], type_vocab_size=1), False, (0, 5, 28)),
    ('LongformerForMaskedLM', dict(hidden_act='relu', num_attention_heads=2), True, (11, 29)),
    ('LongformerForMaskedLM', dict(attention_window=[4, 8, 4], num_hidden_layers=3), True, ()),
    ('LongformerModel', dict(pad_token_id=0), False, (3,)),
    ('LongformerForSequenceClassification', dict(num_labels=3), False, ()),
    ('LongformerForSequenceClassification', dict(num_labels=3, attention_window=[4, 12]), False, (4,)),
    ('LongformerForTokenClassification', dict(num_labels=5), False, ()),
  ],
)
def test_longformer(cls, settings, left, marks, tmp_path):
  transformers = pytest.importorskip('transformers')
  reference = getattr(transformers, cls)
  reference = published.WithoutPooler(reference) if cls == 'LongformerModel' else reference
  config = reference.config_class(**SMALL | settings)
  field = 'last_hidden_state' if cls == 'LongformerModel' else 'logits'
  published.check_family(
    reference,
    config,
    tmp_path,
    arguments=build_inputs(left, marks, config.pad_token_id),
    field=field,
    writes=False,
  )


def test_padding_between_tokens_is_refused(tmp_path):
  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.LongformerForMaskedLM, transformers.LongformerConfig(**SMALL)
  ).save_pretrained(tmp_path)
  arguments = build_inputs()
  arguments['input_ids'][0, 4] = 1
  with pytest.raises(ValueError, match='hides ids between the tokens of a row'):
    tfm.from_pretrained(str(tmp_path)).logits(**arguments)


@pytest.mark.parametrize(
  'field, value', [('attention_window', [4]), ('attention_window', 5), ('attention_mode', 'sliding')]
)
def test_what_is_not_understood_is_refused_by_name(field, value, tmp_path):
  import re

  import tfm

  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.LongformerForMaskedLM, transformers.LongformerConfig(**SMALL)
  ).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=re.escape(f'{field}={value!r}')):
    tfm.from_pretrained(str(tmp_path))
