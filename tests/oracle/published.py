"""A published model with random weights, beside ours read from what it saves; for the tests with PyTorch.

PyTorch and transformers are imported when they are needed: this module can be collected without them.
"""

import json

import numpy as np

import tfm
from tfm.hf import export


TOLERANCE = 2e-5  # of the largest logit; noise in float32 is a tenth of it
NEW = 8  # tokens to write
ROWS = np.array([[1] * 12, [1] * 9 + [0] * 3, [1] * 5 + [0] * 7])


def made(cls, config, seed=0, scale=0.3):
  """A model of a class of transformers whose parameters, biases and norms too, are all random."""
  import torch

  torch.manual_seed(seed)
  model = cls(config).eval().float()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if not parameter.requires_grad:  # a constant
        continue
      noise = torch.randn_like(parameter)
      if parameter.ndim > 1:
        parameter.copy_(scale * noise / parameter.shape[-1] ** 0.5 * 2)
      else:
        parameter.add_(scale * noise)
    for name, buffer in model.named_buffers():
      if 'logits_bias' in name:
        buffer.copy_(torch.randn_like(buffer))
  return model


class WithoutPooler:
  """A class of transformers, made without what its hidden states do not depend on."""

  def __init__(self, cls):
    self.cls, self.config_class = cls, cls.config_class

  def __call__(self, config):
    return self.cls(config, add_pooling_layer=False)

  def from_pretrained(self, folder, **kwargs):
    return self.cls.from_pretrained(folder, add_pooling_layer=False, **kwargs)


def inputs(vocab, seed=0, left=False, low=5):
  """Three rows of tokens, padded on the right or on the left, and their mask."""
  mask = ROWS[:, ::-1].copy() if left else ROWS
  ids = np.random.default_rng(seed).integers(low, vocab, mask.shape)
  return dict(input_ids=np.where(mask, ids, 0), attention_mask=mask)


def pairs(source=12, target=9, vocab=61, seed=0, low=5):
  """Three sources, padded on the right, and as many targets."""
  draw = np.random.default_rng(seed)
  mask = (np.arange(source) < np.array([[source], [source - 3], [source // 2]])).astype(int)
  ids = np.where(mask, draw.integers(low, vocab, mask.shape), 0)
  return dict(input_ids=ids, attention_mask=mask, decoder_input_ids=draw.integers(0, vocab, (3, target)))


def answered(model, given, field='logits'):
  """What the published model answers, float32."""
  import torch

  with torch.no_grad():
    answer = model(**{name: torch.as_tensor(np.asarray(x)) for name, x in given.items()})
  return np.asarray(getattr(answer, field))


def close(ours, theirs, mask=None, tolerance=TOLERANCE):
  """Logits agree wherever there is a token."""
  assert ours.shape == theirs.shape and ours.dtype == np.float32
  if mask is not None and mask.shape == ours.shape[:2]:
    ours, theirs = ours[mask > 0], theirs[mask > 0]
  error = np.abs(ours - theirs).max() / np.abs(theirs).max()
  assert error < tolerance, f'relative difference {error:.1e}'


def check(cls, config, tmp_path, *, given=None, field='logits', writes=True, seed=0, family=None, again=True):
  """Their weights in, the same logits and continuations out; and back again, into their class, the same logits.

  Args:
    given: what the model is asked; three padded rows unless told.
    field: of the answer of the published model.
    writes: whether it continues texts, greedily and by beam search.
    again: whether our export is read by the published class.
  Returns:
    The two models.
  """
  theirs = made(cls, config, seed)
  theirs.save_pretrained(tmp_path / 'theirs')
  ours = tfm.from_pretrained(str(tmp_path / 'theirs'))
  given = inputs(ours.vocab, seed) if given is None else given
  mask = None if 'decoder_input_ids' in given else given.get('attention_mask')
  wanted = answered(theirs, given, field)
  close(ours.logits(**given), wanted, mask)
  if writes:
    continues_alike(ours, theirs, inputs(ours.vocab, seed + 1, left=not config.is_encoder_decoder))
  if again:
    returned, told = exported(ours, cls, tmp_path / 'ours')
    assert not any(told[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), told
    close(answered(returned, given, field), wanted, mask, 1e-6)
    same_parameters(theirs, returned, unread(ours))
  return ours, theirs


def exported(ours, cls, folder):
  """What the published class reads of our export."""
  export.export(
    ours.config,
    ours.params,
    str(folder),
    ours.family.model_type,
    ours.vocab,
    ours.ids,
    ours.output,
    ours.source_vocab,
  )
  return cls.from_pretrained(folder, output_loading_info=True)


def same_parameters(one, other, rows={}):
  """Also those that no output shows; but not the first `rows` of some."""
  ours = dict(other.named_parameters())
  for name, parameter in one.named_parameters():
    difference = (parameter.detach().numpy() - ours[name].detach().numpy())[rows.get(name, 0) :]
    assert np.abs(difference).max() < 1e-6, name


def unread(ours):
  """How many rows of a tensor stand before the first that is read, by name, with what is no output's and without."""
  skips = {
    name: weight.skip for weight in ours.family.weights(ours.config) for name in weight.tensors if weight.skip
  }
  return skips | {name.removeprefix(ours.family.prefix): skip for name, skip in skips.items()}


def continues_alike(ours, theirs, given):
  """Greedy tokens, and four beams with their scores."""
  import torch

  ids, mask = (torch.as_tensor(given[name]) for name in ('input_ids', 'attention_mask'))
  skip = 1 if theirs.config.is_encoder_decoder else ids.shape[1]
  common = dict(
    attention_mask=mask,
    max_new_tokens=NEW,
    do_sample=False,
    pad_token_id=0,
    eos_token_id=None,
    forced_bos_token_id=None,
    forced_eos_token_id=None,
    repetition_penalty=1.0,
    bad_words_ids=None,
  )
  with torch.no_grad():
    greedy = theirs.generate(ids, num_beams=1, **common)
    found = theirs.generate(
      ids, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, output_scores=True, **common
    )
  np.testing.assert_array_equal(ours.generate(**given, max_new_tokens=NEW), greedy[:, skip:])
  best = [one for row in ours.search(**given, max_new_tokens=NEW, num_beams=4) for one in row]
  np.testing.assert_array_equal(np.stack([one.tokens for one in best]), found.sequences[:, skip:])
  np.testing.assert_allclose([one.score for one in best], found.sequences_scores, atol=1e-4)


def longer(theirs, folder, length, field='logits'):
  """The same answers, of the model read from a folder, to one text of a length."""
  ours = tfm.from_pretrained(str(folder))
  ids = np.random.default_rng(5).integers(5, ours.vocab, (1, length))
  close(ours.logits(ids), answered(theirs, dict(input_ids=ids), field))


def older(folder, **fields):
  """The folder's config.json in the form of older files: these fields besides, or instead (None: away)."""
  path = folder / 'config.json'
  given = json.loads(path.read_text()) | fields
  path.write_text(json.dumps({name: value for name, value in given.items() if value is not None}))
