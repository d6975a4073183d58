"""Builds published models with random weights and compares ours with them; for the tests with PyTorch.

PyTorch and transformers are imported inside the functions, so that this module imports without them.
"""

import json

import numpy as np

import tfm
from tfm.decoding.beam import BeamSearch, Power
from tfm.hf import export


# The default of `transformers`, but for the number of beams.
BEAM_SEARCH = BeamSearch(4, Power(1.0), 'likely')
TOLERANCE = 2e-5  # of the largest logit; noise in float32 is a tenth of it
NEW_TOKENS = 8
ROWS = np.array([[1] * 12, [1] * 9 + [0] * 3, [1] * 5 + [0] * 7])


def build_hf_model(cls, config, seed=0, scale=0.3):
  """A model of a class of transformers; all parameters, biases and norms included, are random."""
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
  """A class of transformers without the pooler, which the hidden states do not depend on."""

  def __init__(self, cls):
    self.cls, self.config_class = cls, cls.config_class

  def __call__(self, config):
    return self.cls(config, add_pooling_layer=False)

  def from_pretrained(self, folder, **kwargs):
    return self.cls.from_pretrained(folder, add_pooling_layer=False, **kwargs)


def make_inputs(vocab, seed=0, left=False, low=5):
  """Three rows of tokens, padded on the right or the left, and their mask."""
  mask = ROWS[:, ::-1].copy() if left else ROWS
  ids = np.random.default_rng(seed).integers(low, vocab, mask.shape)
  return dict(input_ids=np.where(mask, ids, 0), attention_mask=mask)


def make_pairs(source=12, target=9, vocab=61, seed=0, low=5):
  """Three sources, padded on the right, and three targets."""
  rng = np.random.default_rng(seed)
  mask = (np.arange(source) < np.array([[source], [source - 3], [source // 2]])).astype(int)
  ids = np.where(mask, rng.integers(low, vocab, mask.shape), 0)
  return dict(input_ids=ids, attention_mask=mask, decoder_input_ids=rng.integers(0, vocab, (3, target)))


def run_hf_model(model, arguments, field='logits'):
  """The output of the published model, float32."""
  import torch

  with torch.no_grad():
    output = model(**{name: torch.as_tensor(np.asarray(x)) for name, x in arguments.items()})
  return np.asarray(getattr(output, field))


def assert_close(logits, expected, mask=None, tolerance=TOLERANCE):
  """Asserts that the logits agree at every token."""
  assert logits.shape == expected.shape and logits.dtype == np.float32
  if mask is not None and mask.shape == logits.shape[:2]:
    logits, expected = logits[mask > 0], expected[mask > 0]
  error = np.abs(logits - expected).max() / np.abs(expected).max()
  assert error < tolerance, f'relative difference {error:.1e}'


def check_family(  # more than six parameters: the options of one comparison, all with defaults
  cls, config, tmp_path, *, arguments=None, field='logits', writes=True, seed=0, reload=True
):
  """Asserts that a published model and ours agree: logits, continuations, and logits after an export.

  Args:
    arguments: of the models; three padded rows unless set.
    field: of the output of the published model.
    writes: whether to compare continuations, greedy and by beam search.
    reload: whether the published class reads our export.
  Returns:
    (our model, published model).
  """
  hf_model = build_hf_model(cls, config, seed)
  hf_model.save_pretrained(tmp_path / 'theirs')
  model = tfm.from_pretrained(str(tmp_path / 'theirs'))
  arguments = make_inputs(model.vocab, seed) if arguments is None else arguments
  mask = None if 'decoder_input_ids' in arguments else arguments.get('attention_mask')
  expected = run_hf_model(hf_model, arguments, field)
  assert_close(model.logits(**arguments), expected, mask)
  if writes:
    check_generation(model, hf_model, make_inputs(model.vocab, seed + 1, left=not config.is_encoder_decoder))
  if reload:
    reloaded, report = export_and_reload(model, cls, tmp_path / 'ours')
    assert not any(report[name] for name in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), report
    assert_close(run_hf_model(reloaded, arguments, field), expected, mask, 1e-6)
    assert_same_parameters(hf_model, reloaded, count_skipped_rows(model))
  return model, hf_model


def export_and_reload(model, cls, folder):
  """Exports our model and loads it with the published class."""
  export.to_pretrained(
    model.config,
    model.params,
    str(folder),
    model.family.model_type,
    model.vocab,
    model.ids,
    model.output,
    model.source_vocab,
  )
  return cls.from_pretrained(folder, output_loading_info=True)


def assert_same_parameters(one, other, skip_rows={}):
  """Asserts equal parameters, those that do not change the output included, without the first `skip_rows` of
  some.
  """
  others = dict(other.named_parameters())
  for name, parameter in one.named_parameters():
    difference = np.atleast_1d(parameter.detach().numpy() - others[name].detach().numpy())
    assert np.abs(difference[skip_rows.get(name, 0) :]).max() < 1e-6, name


def count_skipped_rows(model):
  """Tensor → unused rows at its start; names with and without the family's prefix."""
  rows = {
    name: weight.skip_rows
    for weight in model.family.weights(model.config)
    for name in weight.tensors
    if weight.skip_rows
  }
  return rows | {name.removeprefix(model.family.prefix): count for name, count in rows.items()}


def check_generation(model, hf_model, arguments):
  """Asserts equal greedy tokens, and four equal beams with their scores."""
  import torch

  ids, mask = (torch.as_tensor(arguments[name]) for name in ('input_ids', 'attention_mask'))
  start = 1 if hf_model.config.is_encoder_decoder else ids.shape[1]
  common = dict(
    attention_mask=mask,
    max_new_tokens=NEW_TOKENS,
    do_sample=False,
    pad_token_id=0,
    eos_token_id=None,
    forced_bos_token_id=None,
    forced_eos_token_id=None,
    repetition_penalty=1.0,
    bad_words_ids=None,
  )
  with torch.no_grad():
    greedy = hf_model.generate(ids, num_beams=1, **common)
    beams = hf_model.generate(
      ids, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, output_scores=True, **common
    )
  np.testing.assert_array_equal(model.generate(**arguments, max_new_tokens=NEW_TOKENS), greedy[:, start:])
  best = [
    one for row in model.search(**arguments, max_new_tokens=NEW_TOKENS, settings=BEAM_SEARCH) for one in row
  ]
  np.testing.assert_array_equal(np.stack([one.tokens for one in best]), beams.sequences[:, start:])
  np.testing.assert_allclose([one.score for one in best], beams.sequences_scores, atol=1e-4)


def check_long_text(hf_model, folder, length, field='logits'):
  """Asserts equal outputs for one text of a length; our model is loaded from a folder."""
  model = tfm.from_pretrained(str(folder))
  ids = np.random.default_rng(5).integers(5, model.vocab, (1, length))
  assert_close(model.logits(ids), run_hf_model(hf_model, dict(input_ids=ids), field))


def rewrite_config(folder, **fields):
  """Changes fields of the folder's config.json, as in older files; None removes a field."""
  path = folder / 'config.json'
  fields = json.loads(path.read_text()) | fields
  path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
