"""The Vision Transformer and DeiT, with one head and with two, with random settings: the answers of the
published implementation, and back again.
"""

import numpy as np
import pytest

import tfm
from tests.oracle import published
from tfm.hf import export


pytestmark = pytest.mark.oracle
SMALL = dict(
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=48,
  image_size=12,
  patch_size=4,
  layer_norm_eps=1e-3,
  num_labels=5,
)


def build_inputs(*shape):
  return dict(pixel_values=np.random.default_rng(0).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize(
  'cls, settings, shape, field',
  [
    ('ViTForImageClassification', dict(qkv_bias=False, hidden_act='relu'), (3, 12, 12), 'logits'),
    (
      'ViTForImageClassification',
      dict(image_size=[8, 20], num_channels=1, num_attention_heads=2),
      (1, 8, 20),
      'logits',
    ),
    ('ViTModel', dict(patch_size=[2, 2], num_hidden_layers=3), (3, 12, 12), 'last_hidden_state'),
    ('DeiTForImageClassification', dict(qkv_bias=False, hidden_act='relu'), (3, 12, 12), 'logits'),
    ('DeiTForImageClassificationWithTeacher', dict(num_attention_heads=2), (3, 12, 12), 'logits'),
    (
      'DeiTForImageClassificationWithTeacher',
      dict(image_size=[8, 20], num_channels=1, num_labels=3),
      (1, 8, 20),
      'logits',
    ),
    ('DeiTModel', dict(patch_size=[2, 2], num_hidden_layers=3), (3, 12, 12), 'last_hidden_state'),
  ],
)
def test_logits(cls, settings, shape, field, tmp_path):
  transformers = pytest.importorskip('transformers')
  reference = getattr(transformers, cls)
  reference = published.WithoutPooler(reference) if cls.endswith('Model') else reference
  config = getattr(transformers, f'{cls.partition("T")[0]}TConfig')(**SMALL | settings)
  published.check_family(
    reference, config, tmp_path, arguments=build_inputs(2, *shape), field=field, writes=False
  )


def test_what_no_output_needs_is_left_out_and_logged(tmp_path, caplog):
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.ViTModel, transformers.ViTConfig(**SMALL))
  theirs.save_pretrained(tmp_path)
  ours, arguments = tfm.from_pretrained(str(tmp_path)), build_inputs(2, 3, 12, 12)
  assert 'pooler.dense.bias' in caplog.text
  published.assert_close(
    ours.logits(**arguments), published.run_hf_model(theirs, arguments, 'last_hidden_state')
  )
  with pytest.raises(ValueError, match=r'pixel_values have shape \(3, 16, 16\).*requires \(3, 12, 12\)'):
    ours.logits(**build_inputs(2, 3, 16, 16))
  with pytest.raises(ValueError, match='attention_mask is not an input'):
    ours.logits(attention_mask=np.ones((1, 4)), **arguments)
  with pytest.raises(ValueError, match="model_type='vit' requires pixel_values"):
    ours.logits()


@pytest.mark.parametrize(
  'field, value, sentence',
  [
    ('patch_size', [4, 2], 'patch_size='),
    ('patch_size', 5, 'config.model.patch=5'),
    ('use_mean_pooling', True, 'use_mean_pooling=True'),
    (
      'architectures',
      ['DeiTForMaskedImageModeling'],
      "architectures='DeiTForMaskedImageModeling' is not supported for model_type='vit'",
    ),
  ],
)
def test_what_is_not_understood_is_refused_by_name(field, value, sentence, tmp_path):
  transformers = pytest.importorskip('transformers')
  published.build_hf_model(
    transformers.ViTForImageClassification, transformers.ViTConfig(**SMALL)
  ).save_pretrained(tmp_path)
  published.rewrite_config(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=sentence):
    tfm.from_pretrained(str(tmp_path))


def test_two_tokens_are_no_vit(tmp_path):
  transformers = pytest.importorskip('transformers')
  cls = transformers.DeiTForImageClassificationWithTeacher
  published.build_hf_model(cls, transformers.DeiTConfig(**SMALL)).save_pretrained(tmp_path / 'in')
  ours = tfm.from_pretrained(str(tmp_path / 'in'))
  with pytest.raises(ValueError, match='a different model: .*model.class_tokens: 2 → 1'):
    export.to_pretrained(
      ours.config, ours.params, str(tmp_path / 'out'), 'vit', ours.vocab, ours.ids, ours.output
    )
