"""Captions: each image of a labelled source with a text around the name of its class."""

import collections

import numpy as np
import pytest

from tfm import spec
from tfm.data import packing, pipeline
from tfm.data.packing import protocol
from tfm.data.tokenizers.bytes import Bytes


NAMES = tuple(
  x
  for i, name in enumerate('zero one two three four five six seven eight nine'.split())
  for x in (str(i), name)
)
TEMPLATES = 'a photo of the digit {}', 'the number {}'
SPEC = f"captions('digits', {TEMPLATES}, {NAMES})"


def test_every_image_has_one_text_with_the_name_of_its_class(make_source, tmp_path):
  data, plain = (
    pipeline.open_data(make_source(SPEC), Bytes(), tmp_path),
    pipeline.open_data(make_source('digits'), None, tmp_path),
  )
  names, used = dict(zip(NAMES[::2], NAMES[1::2])), collections.Counter()
  documents = {
    image.tobytes(): (text, label)
    for split in ('train', 'validation', 'test')
    for image, text, label in zip(*(data.corpus.splits[split][f] for f in ('image', 'text', 'label')))
  }
  for split in ('train', 'validation', 'test'):
    for image, label in zip(*(plain.corpus.splits[split][field] for field in ('image', 'label'))):
      text, name = documents[image.tobytes()]
      assert name == names[label]
      used[next(t for t in TEMPLATES if t.replace('{}', name) == text)] += 1
  assert used.total() == 1797 and min(used.values()) > 700, 'each template has its share'
  tokens = data.tokens('test')
  assert tokens.names == tuple(sorted(NAMES[1::2])) and data.tokenizer == Bytes()
  row = spec.build('each', packing, protocol.Packing).evaluation_rows(tokens, 40)[3]
  size = int(row['segments'].sum())
  text, label = (data.corpus.splits['test'][field][3] for field in ('text', 'label'))
  assert Bytes().decode(row['inputs'][:size]) == text and tokens.names[row['classes']] == label
  assert row['inputs'][0] == Bytes().bos_id and row['inputs'][size - 1] == Bytes().eos_id
  np.testing.assert_array_equal(np.round((row['image'] + 1) * 127.5), data.corpus.splits['test']['image'][3])


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('captions("stdlib")', "source='stdlib' has no images with a label"),
    ("captions('captions')", "source='captions' has no images with a label"),
    ("captions('digits', ())", 'templates=.. has no text'),
    ("captions('digits', ('a photo',))", "templates has 'a photo'"),
    ("captions('digits', names=('0',))", 'names has 1 entries'),
  ],
)
def test_what_cannot_be_is_refused(make_source, text, sentence):
  with pytest.raises(ValueError, match=sentence):
    make_source(text)


def test_a_label_without_a_name_is_refused(make_source, tmp_path):
  with pytest.raises(ValueError, match="has no name for the label '[1-9]'"):
    pipeline.open_data(make_source("captions('digits', names=('0', 'zero'))"), Bytes(), tmp_path)
