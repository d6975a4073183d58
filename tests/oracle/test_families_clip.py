"""CLIP with random settings: the logits of the published implementation, and back again."""

import json

import numpy as np
import pytest

import tfm
from tests.oracle import published


pytestmark = pytest.mark.oracle
VOCAB, END = 61, 60
TEXT = dict(
  vocab_size=VOCAB,
  hidden_size=24,
  intermediate_size=40,
  num_hidden_layers=2,
  num_attention_heads=4,
  max_position_embeddings=16,
  layer_norm_eps=1e-3,
  eos_token_id=END,
)
VISION = dict(
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=3,
  num_attention_heads=2,
  image_size=12,
  patch_size=4,
  layer_norm_eps=2e-3,
)


def build_inputs(end=END, pad=END, images=2, channels=3, size=(12, 12)):
  """Three texts of different lengths and some images."""
  draw = np.random.default_rng(0)
  ids = draw.integers(3, VOCAB - 2, (3, 9))
  for row, length in zip(ids, (9, 6, 4)):
    row[length - 1], row[length:] = end, pad
  mask = (np.arange(9) < np.array([[9], [6], [4]])).astype(int)
  pixels = draw.normal(size=(images, channels, *size)).astype(np.float32)
  return dict(input_ids=ids, attention_mask=mask, pixel_values=pixels)


def make_config(transformers, text={}, vision={}):
  return transformers.CLIPConfig(text_config=TEXT | text, vision_config=VISION | vision, projection_dim=24)


@pytest.mark.parametrize(
  'text, vision, arguments',
  [
    ({}, {}, {}),
    # Ids above the end's follow it: the first end counts, and not the greatest id.
    (dict(eos_token_id=40), dict(hidden_act='gelu', num_channels=1), dict(end=40, pad=59, channels=1)),
    # Older files: the greatest id counts, whatever the end.
    (
      dict(eos_token_id=2, hidden_act='gelu'),
      dict(patch_size=2, image_size=10),
      dict(end=END, pad=1, images=4, size=(10, 10)),
    ),
  ],
)
@pytest.mark.parametrize('with_mask', [True, False])
def test_logits(text, vision, arguments, with_mask, tmp_path):
  transformers = pytest.importorskip('transformers')
  inputs = build_inputs(**arguments)
  if not with_mask:
    del inputs['attention_mask']
  config = make_config(transformers, text, vision)
  theirs = published.build_hf_model(transformers.CLIPModel, config)
  theirs.save_pretrained(tmp_path / 'theirs')
  ours = tfm.from_pretrained(str(tmp_path / 'theirs'))
  logits = ours.logits(**inputs)
  published.assert_close(logits, published.run_hf_model(theirs, inputs, 'logits_per_image'), tolerance=1e-5)
  published.assert_close(logits.T, published.run_hf_model(theirs, inputs, 'logits_per_text'), tolerance=1e-5)
  reloaded, report = published.export_and_reload(ours, transformers.CLIPModel, tmp_path / 'ours')
  assert not any(report[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), report
  published.assert_same_parameters(theirs, reloaded)
  published.assert_close(published.run_hf_model(reloaded, inputs, 'logits_per_image'), logits, tolerance=1e-5)


def test_what_is_refused(tmp_path):
  transformers = pytest.importorskip('transformers')
  theirs = published.build_hf_model(transformers.CLIPModel, make_config(transformers))
  theirs.save_pretrained(tmp_path)
  ours, inputs = tfm.from_pretrained(str(tmp_path)), build_inputs()
  endless = inputs['input_ids'].copy()
  endless[1] = 5
  for arguments, sentence in (
    (inputs | dict(input_ids=endless), 'no end token 60 in row 1'),
    (inputs | dict(pixel_values=None), "model_type='clip' requires pixel_values"),
    (inputs | dict(input_ids=None), "model_type='clip' requires input_ids"),
    (inputs | dict(pixel_values=inputs['pixel_values'][:, :, :8]), r'the model requires \(3, 12, 12\)'),
    (inputs | dict(input_ids=np.full((1, 17), END), attention_mask=None), 'the model has 16 positions'),
  ):
    with pytest.raises(ValueError, match=sentence):
      ours.logits(**arguments)
  with pytest.raises(ValueError, match='generates no text'):
    ours.generate(inputs['input_ids'], max_new_tokens=2)
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | dict(projection_dim=32)))
  with pytest.raises(ValueError, match='projection_dim=32 is not supported; only 24'):
    tfm.from_pretrained(str(tmp_path))
