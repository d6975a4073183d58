"""Continuous batching changes no text: any order and overlap of requests gives what each has alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.tiny import VOCAB, tiny_model
from tfm.decoding import loop
from tfm.decoding.sampling import Sampling
from tfm.serving.engine import Engine, Sequence


EOS, ROWS, LENGTH = 3, 3, 48


class Text:
  """A sequence whose tokens are collected."""

  def __init__(self, prompt, max_tokens, sampling=Sampling(), seed=0, sample=0):
    self.tokens, self.reason, self.failure = [], '', ''
    prompt = np.asarray(prompt, np.int32)
    self.sequence = Sequence(prompt, max_tokens, sampling, seed, sample, self.emit, self.fail)

  def emit(self, tokens, reason):
    assert not self.reason and not self.failure
    self.tokens += tokens.tolist()
    self.reason = reason

  def fail(self, sentence):
    self.failure = sentence

  def alone(self, model, params):
    """Its tokens by the decoding loop of `tfm generate`, without other rows."""
    s = self.sequence
    arguments = dict(max_tokens=s.max_tokens, eos=EOS, sampling=s.sampling, seed=s.seed, samples=[s.sample])
    return loop.generate_all(model, params, [s.prompt], **arguments)[0].tolist()


@pytest.fixture(scope='module', params=['softmax', 'stick_breaking'])
def tiny(request):
  """The second one also reads the order of the slots."""
  return tiny_model(mixer=request.param, position='rope' if request.param == 'softmax' else 'none')


samplings = st.builds(
  Sampling,
  temperature=st.sampled_from([0.0, 0.7, 1.3]),
  top_k=st.sampled_from([0, 5]),
  top_p=st.sampled_from([1.0, 0.8]),
  min_p=st.sampled_from([0.0, 0.1]),
  repetition_penalty=st.sampled_from([1.0, 1.4]),
)
texts = st.builds(
  Text,
  st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24),
  st.integers(1, 20),
  samplings,
  st.integers(0, 2**32 - 1),
  st.integers(0, 3),
)


@pytest.mark.sampled(0)
@settings(max_examples=20)
@given(arrivals=st.lists(st.tuples(texts, st.integers(0, 2)), min_size=1, max_size=12))
def test_any_order_and_overlap_gives_each_text_its_own_tokens(tiny, arrivals):
  """Each text arrives some steps after the one before, or as soon as a row is free; the cache, of fewer slots
  than all texts have tokens, is filled several times over."""
  served = Engine(*tiny, ROWS, LENGTH, EOS)
  for text, steps in arrivals:
    for _ in range(steps):
      served.step()
    while served.active == served.rows:
      served.step()
    served.validate(text.sequence)
    served.add(text.sequence)
  while served.active:
    served.step()
  for text, _ in arrivals:
    assert text.tokens == text.alone(*tiny)
    assert text.reason == ('length' if len(text.tokens) == text.sequence.max_tokens else 'stop')


def test_a_text_without_numbers_fails_alone(tiny):
  """Its embedding is NaN at one token that only it has."""
  model, params = tiny
  table = params['embedding']['table'].at[5].set(np.nan)
  served = Engine(model, params | {'embedding': params['embedding'] | dict(table=table)}, ROWS, LENGTH, EOS)
  texts = [Text([5], 9), Text([7, 8], 1)]
  for text in texts:
    served.add(text.sequence)
  while served.active:
    served.step()
  assert texts[0].failure == 'the logits of the model are NaN; check its parameters' and not texts[0].tokens
  assert not texts[1].failure and texts[1].tokens == texts[1].alone(model, params)


def test_a_cancelled_text_emits_nothing_more_and_frees_its_row(tiny):
  served, texts = Engine(*tiny, ROWS, LENGTH, EOS), [Text([5], 20), Text([7, 8], 20)]
  for text in texts:
    served.add(text.sequence)
  served.cancel(texts[0].sequence)
  served.cancel(texts[0].sequence)
  assert served.active == 1
  while served.active:
    served.step()
  assert not texts[0].tokens and texts[1].tokens == texts[1].alone(*tiny)
