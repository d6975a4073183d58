"""Masked LM: which tokens are masked, how often, by whole words; the loss is that of the formula."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from tests.data.distinct_tokens import make_tokens
from tests.models import test_encoder
from tests.models.pairs import context
from tests.objectives.random_tokens import VOCAB, NumberedTokenizer, random_tokens
from tests.training.steps import LENGTH, ROWS, take_steps
from tfm.config.assemble import Experiment
from tfm.data import pipeline
from tfm.data.packing.concat import Concat
from tfm.data.packing.protocol import MappedRows
from tfm.data.packing.sentence_pairs import SentencePairs
from tfm.data.tokenizers.char import Char
from tfm.objectives.masked_lm import MaskedLM


PLAIN = dict(chunk=0, layout='contiguous', recurrence=0)


def mask_rows(objective, length=32, seed=1, rows=60):
  """Returns (original rows, rows with masked tokens)."""
  data = random_tokens()
  plain = Concat().rows(data, length, seed)
  batch = objective.rows(Concat(), data, length, seed, NumberedTokenizer)
  assert isinstance(batch, MappedRows)
  return [plain[i] for i in range(rows)], [batch[i] for i in range(rows)]


def test_masked_tokens():
  actions, replacements, has_parts_of_words = collections.Counter(), [], False
  for plain, row in zip(*mask_rows(MaskedLM(**PLAIN), length=128, rows=100)):
    free = np.flatnonzero(plain['inputs'] != 0)
    places = row['places'][row['counted'] > 0]
    assert len(places) == round(0.15 * len(free)) and set(places) <= set(free)
    np.testing.assert_array_equal(row['targets'][row['counted'] > 0], plain['inputs'][places])
    changed = np.flatnonzero(row['inputs'] != plain['inputs'])
    assert set(changed) <= set(places)
    masked_inputs = row['inputs'][places]
    actions['masked'] += (masked_inputs == VOCAB).sum()
    actions['kept'] += (masked_inputs == plain['inputs'][places]).sum()
    is_other = (masked_inputs != VOCAB) & (masked_inputs != plain['inputs'][places])
    actions['other'] += is_other.sum()
    replacements.append(masked_inputs[is_other].tolist())
    has_parts_of_words |= any(
      i - 1 not in places and not NumberedTokenizer.pieces[plain['inputs'][i]].startswith(b' ')
      for i in places
    )
  assert has_parts_of_words
  drawn = sum(replacements, [])
  assert set(drawn) <= set(range(VOCAB)) and len(set(drawn)) > VOCAB / 2
  assert any(len(set(row)) > 1 for row in replacements)
  total = actions.total()
  # A token that is drawn by chance is the one that was there once in VOCAB.
  for fate, share in (('masked', 0.8), ('kept', 0.1 + 0.1 / VOCAB), ('other', 0.1 * (1 - 1 / VOCAB))):
    assert abs(actions[fate] / total - share) < 4 * np.sqrt(share * (1 - share) / total), fate


def test_the_selection_differs_by_epoch_and_is_deterministic_by_seed():
  objective, data = MaskedLM(**PLAIN), random_tokens(documents=2)
  first, again, other = (
    objective.rows(Concat(shuffle=False), data, 16, seed, NumberedTokenizer) for seed in (1, 1, 2)
  )
  assert all((first[i]['inputs'] == again[i]['inputs']).all() for i in range(20))
  assert any((first[i]['places'] != other[i]['places']).any() for i in range(20))
  # And not only by the packing.
  row = Concat(shuffle=False).rows(data, 16, 1)[0]
  assert (objective.mask_tokens(NumberedTokenizer, 1, row, 0)['places'] == first[0]['places']).all()
  assert any(
    (objective.mask_tokens(NumberedTokenizer, 1, row, i)['places'] != first[0]['places']).any()
    for i in (1, 2)
  )
  evaluated = [objective.rows(Concat(), data, 16, None, NumberedTokenizer) for _ in range(2)]
  assert len(evaluated[0]) == len(Concat().evaluation_rows(data, 16))
  for a, b in zip(*evaluated):
    np.testing.assert_array_equal(a['inputs'], b['inputs'])


def test_whole_words():
  for plain, row in zip(*mask_rows(MaskedLM(whole_word=True, **PLAIN))):
    places = set(row['places'][row['counted'] > 0].tolist())
    assert len(places) <= round(0.15 * (plain['inputs'] != 0).sum())
    for i in range(1, len(plain['inputs'])):
      here, before = plain['inputs'][i], plain['inputs'][i - 1]
      if here and before and not NumberedTokenizer.pieces[here].startswith(b' '):  # one word
        assert (i in places) == (i - 1 in places)


def test_words_of_characters():
  tokenizer = Char().train(['ab cd'])
  ids = tokenizer.encode('ab cd ab').astype(np.int32)
  row = dict(inputs=ids, segments=np.ones_like(ids))
  words = MaskedLM(**PLAIN).words(tokenizer, row, np.arange(len(ids)))
  assert words == [[0, 1], [2], [3, 4], [5], [6, 7]]


def test_words_of_pieces():
  """A space begins a word on either side of a boundary; so do the end of a text, and another document."""

  class Pieces:
    eos_id, pieces = 0, (b'', b'a ', b'b', b'c', b' d')

  def words(*inputs, segments=None):
    row = dict(inputs=np.array(inputs), segments=np.array(segments or [1] * len(inputs)))
    return MaskedLM(**PLAIN).words(Pieces, row, np.flatnonzero(row['inputs']))

  assert words(2, 1, 2, 3, 4, 3) == [[0, 1], [2, 3], [4, 5]]
  assert words(2, 0, 3, 2) == [[0], [2, 3]]
  assert words(2, 3, 2, 3, segments=[1, 2, 2, 3]) == [[0], [1, 2], [3]]


def test_a_mask_token_of_the_tokenizer_is_used_and_padding_is_not_masked():
  class Tokenizer(NumberedTokenizer):
    special_token_ids = {'<mask>': 5}

  objective = MaskedLM(**PLAIN, rate=1.0, masked=1.0, replaced=0.0)
  row = dict(inputs=np.arange(9, 17), segments=np.array([1] * 6 + [0] * 2), positions=np.arange(8))
  result = objective.mask_tokens(Tokenizer, 0, row, 0)
  assert result['inputs'].tolist() == [5] * 6 + [15, 16] and result['counted'].tolist() == [1] * 6 + [0] * 2


def test_at_least_one_token_of_a_row_is_selected():
  assert [MaskedLM(**PLAIN).selected_count(n) for n in (0, 1, 2, 10, 20)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize('next_sentence', [False, True])
def test_padding_has_the_shape_of_rows(next_sentence):
  objective = MaskedLM(**PLAIN, next_sentence=next_sentence)
  packing = SentencePairs() if next_sentence else Concat()
  padding, row = (
    objective.padding_row(16),
    objective.rows(packing, random_tokens(), 16, 1, NumberedTokenizer)[0],
  )
  assert {name: (x.shape, x.dtype) for name, x in padding.items()} == {
    name: (x.shape, x.dtype) for name, x in row.items()
  }
  assert not any(x.any() for x in padding.values())
  assert {'types', 'next'} & set(row) == ({'types', 'next'} if next_sentence else set())


def test_a_row_of_ends_has_no_masked_tokens():
  row = dict(
    inputs=np.zeros(8, np.int32), segments=np.ones(8, np.int32), positions=np.arange(8, dtype=np.int32)
  )
  result = MaskedLM(**PLAIN).mask_tokens(NumberedTokenizer, 0, row, 0)
  assert not result['counted'].any() and not result['inputs'].any()


@pytest.mark.parametrize('chunk', [0, 1])
def test_loss(chunk):
  config = test_encoder.config()
  objective = dataclasses.replace(Experiment(config).objective, chunk=chunk)
  model, params = test_encoder.make_encoder()
  rows = objective.rows(SentencePairs(), random_tokens(4, 20), 8, None, NumberedTokenizer)
  step = jax.jit(lambda params, batch: objective(model, params, batch, None))
  batch, padding = next(pipeline.evaluation_batches(rows, 7)), objective.padding_row(8)
  total, sums = step(params, {name: np.stack([*x, padding[name]]) for name, x in batch.items()})
  answers = test_encoder.answers(model, params, batch['inputs'], context(batch['segments']), batch['types'])
  log_p = jax.nn.log_softmax(np.asarray(answers['vocabulary'], np.float64))
  loss = -sum(
    log_p[b, place, target]
    for b, p in np.ndenumerate(batch['counted'][:, 0])
    for place, target, counted in zip(batch['places'][b], batch['targets'][b], batch['counted'][b])
    if counted
  )
  following = np.asarray(jax.nn.log_softmax(answers['next_sentence']))
  second = -following[np.arange(7), batch['next']].mean()
  np.testing.assert_allclose(sums['loss'], loss, rtol=2e-5)
  np.testing.assert_allclose(sums['next_sentence_loss'] / sums['tokens'], second, rtol=2e-5)
  np.testing.assert_allclose(total, loss + second * sums['tokens'], rtol=2e-5)
  right = (following.argmax(-1) == batch['next']).mean()
  assert 0 < right < 1
  np.testing.assert_allclose(sums['next_sentence_accuracy'] / sums['tokens'], right, rtol=1e-6)
  _, sums = step(params, {name: np.stack([x[0], *[padding[name]] * 7]) for name, x in batch.items()})
  first = -following[0, batch['next'][0]]
  np.testing.assert_allclose(sums['next_sentence_loss'] / sums['tokens'], first, rtol=2e-5)


@pytest.mark.slow
def test_dropout_is_drawn_from_the_key_and_is_off_without_one():
  config = test_encoder.config('masked_lm', 'concat', dropout=dict(residual=0.5))  # no classifier
  objective = Experiment(config).objective
  plain, params = test_encoder.make_encoder()
  model = Experiment(config).build_model(test_encoder.VOCAB - 1)
  rows = objective.rows(Concat(), random_tokens(4, 20), 8, None, NumberedTokenizer)
  batch = next(pipeline.evaluation_batches(rows, 3))
  step = jax.jit(lambda key: objective(model, params, batch, key)[0])
  without = step(None)
  np.testing.assert_allclose(without, objective(plain, params, batch, None)[0], rtol=1e-5)
  losses = [float(without), *(float(step(jax.random.key(seed))) for seed in (0, 1))]
  assert len(set(losses)) == 3


def test_pairs_of_texts():
  data = random_tokens(documents=12, size=40)
  rows, follows = SentencePairs().rows(data, 16, seed=3), 0
  texts = [data.document(d)[:-1].tolist() for d in range(data.documents)]
  for i in range(200):
    row = rows[i]
    n = int(row['segments'].sum())
    first, second = row['types'][:n] == 0, row['types'][:n] == 1
    a, b = (row['inputs'][:n][side].tolist() for side in (first, second))
    assert a[0] == 0 and a[-1] == 0 and b[-1] == 0 and len(a) > 2 and len(b) > 1
    a, b = a[1:-1], b[:-1]

    def stands(text, whole):
      return any(whole[k : k + len(text)] == text for k in range(len(whole)))

    assert any(stands(a, text) for text in texts)
    # Of made-up tokens, two texts together are nowhere by chance.
    assert any(stands(a + b, text) for text in texts) == bool(row['next'])
    follows += int(row['next'])
  assert abs(follows - 100) < 30


def test_a_second_text_from_a_shorter_document_is_all_of_it():
  rows, shorter = SentencePairs().rows(make_tokens([12, 3]), 16, seed=0), 0
  for row in map(rows.__getitem__, range(60)):
    first, second = (row['inputs'][row['types'] == side] for side in (0, 1))
    first, second = first[(first > 0) & (first < 10**6)], second[(second > 0) & (second < 10**6)]
    if first[0] == 1 and not row['next']:
      parts = [[13], [14], [15], [13, 14], [14, 15]]
      assert second.tolist() in ([[13, 14, 15]] if len(first) <= 9 else parts)
      shorter += len(first) < 9
  assert shorter > 5


def test_evaluation_pairs_are_always_the_same():
  data = random_tokens(documents=3)
  a, b = (SentencePairs().evaluation_rows(data, 16) for _ in range(2))
  assert len(a) == sum(-(-n // 13) - (n % 13 == 1) for n in data.lengths)
  with pytest.raises(IndexError):
    a[len(a)]
  for one, two in zip(a, b):
    for field in one:
      np.testing.assert_array_equal(one[field], two[field])


@pytest.mark.slow
def test_neither_a_mesh_nor_microbatches_change_the_losses(tiny):
  def run(accumulation, mesh):
    config = tiny(
      **{
        'model.architecture': 'encoder',
        'model.token_types': 2,
        'model.output_transform': 'gelu',
        'model.output_bias': True,
        'model.pooled_transform': 'tanh',
        'objective': 'masked_lm(next_sentence=True)',
        'data.packing': 'sentence_pairs',
        'training.gradient_accumulation': accumulation,
      }
    )
    objective = Experiment(config).objective
    rows = objective.rows(SentencePairs(), random_tokens(), LENGTH, 1, NumberedTokenizer)
    batches = pipeline.train_iterator(rows, ROWS)
    history, _ = take_steps(config, 2, mesh, lambda seed: next(batches))
    return [[losses[name] for name in ('loss', 'next_sentence_loss', 'gradient_norm')] for losses in history]

  # The mean over rows is one of microbatches, by their tokens.
  np.testing.assert_allclose(run(2, dict(data=2, fsdp=2, tensor=2)), run(1, None), rtol=2e-3)


@pytest.mark.parametrize(
  'call, sentence',
  [
    (lambda: MaskedLM(rate=0.0, **PLAIN), 'rate=0.0 must lie in'),
    (lambda: MaskedLM(rate=1.5, **PLAIN), 'rate=1.5 must lie in'),
    (lambda: MaskedLM(masked=0.9, replaced=0.2, **PLAIN), 'masked=0.9 and replaced=0.2 must not be negative'),
    (
      lambda: SentencePairs().rows(random_tokens(documents=1), 16, 0),
      "no second text can come from another document; use packing='concat'",
    ),
    (lambda: SentencePairs().rows(random_tokens(), 4, 0), 'length=4 has no room for two texts'),
  ],
)
def test_invalid_fields_are_rejected(call, sentence):
  with pytest.raises(ValueError, match=sentence):
    call()
