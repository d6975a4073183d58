"""DeiT with random settings, with one head and with two: the answers of the published implementation, and back again."""

import numpy as np
import pytest
from reference import published

from tfm import pretrained

pytestmark = pytest.mark.oracle
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12, patch_size=4,
             layer_norm_eps=1e-3, num_labels=5)


def asked(*shape):
  return dict(pixel_values=np.random.default_rng(0).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize('cls, settings, shape, field', [
  ('DeiTForImageClassification', dict(qkv_bias=False, hidden_act='relu'), (3, 12, 12), 'logits'),
  ('DeiTForImageClassificationWithTeacher', dict(num_attention_heads=2), (3, 12, 12), 'logits'),
  ('DeiTForImageClassificationWithTeacher', dict(image_size=[8, 20], num_channels=1, num_labels=3), (1, 8, 20), 'logits'),
  ('DeiTModel', dict(patch_size=[2, 2], num_hidden_layers=3), (3, 12, 12), 'last_hidden_state'),
])
def test_deit(cls, settings, shape, field, tmp_path):
  transformers = pytest.importorskip('transformers')
  made = getattr(transformers, cls)
  made = published.WithoutPooler(made) if cls == 'DeiTModel' else made
  published.check(made, transformers.DeiTConfig(**SMALL | settings), tmp_path, given=asked(2, *shape), field=field, writes=False)


@pytest.mark.parametrize('field, value, sentence', [
  ('patch_size', [4, 2], 'patch_size='), ('use_mean_pooling', True, 'use_mean_pooling=True'),
  ('architectures', ['DeiTForMaskedImageModeling'], "architectures='DeiTForMaskedImageModeling' is not read of 'deit'")])
def test_what_is_not_understood_is_refused_by_name(field, value, sentence, tmp_path):
  import tfm
  transformers = pytest.importorskip('transformers')
  published.made(transformers.DeiTForImageClassification, transformers.DeiTConfig(**SMALL)).save_pretrained(tmp_path)
  published.older(tmp_path, **{field: value})
  with pytest.raises(ValueError, match=sentence):
    tfm.from_pretrained(str(tmp_path))


def test_two_tokens_are_no_vit(tmp_path):
  import tfm
  transformers = pytest.importorskip('transformers')
  cls = transformers.DeiTForImageClassificationWithTeacher
  published.made(cls, transformers.DeiTConfig(**SMALL)).save_pretrained(tmp_path / 'in')
  ours = tfm.from_pretrained(str(tmp_path / 'in'))
  with pytest.raises(ValueError, match='another model: .*model.class_tokens: 2 → 1'):
    pretrained.export(ours.config, ours.params, str(tmp_path / 'out'), 'vit', ours.vocab, ours.ids, ours.output)
