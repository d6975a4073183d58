"""Texts in pieces: stop sequences cut them where they would cut the whole."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.tokenizers.bytes import Bytes
from tfm.serving.generation import Choice, overlap


EOS = Bytes().eos_id


def cut(text, stops):
  """The text before the first stop sequence."""
  return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@given(
  text=st.text('ab€', max_size=20),
  stops=st.lists(st.text('ab€', min_size=1, max_size=4), max_size=3),
  places=st.lists(st.integers(0, 40), max_size=6),
)
def test_pieces_join_to_the_text_before_the_first_stop_sequence(text, stops, places):
  """Characters and stop sequences are divided among the pieces in any way."""
  choice, tokens = Choice(Bytes(), stops), Bytes().encode(text)
  pieces = np.split(tokens, sorted(min(place, len(tokens)) for place in places))
  parts = []
  for i, piece in enumerate(pieces):
    parts.append(choice.extend(piece, 'length' if i == len(pieces) - 1 else ''))
    assert cut(text, stops).startswith(''.join(parts))
    if choice.reason:
      break
  whole = cut(text, stops)
  assert ''.join(parts) == whole
  assert choice.reason == ('stop' if any(stop in text for stop in stops) else 'length')


def test_only_what_may_begin_a_stop_sequence_is_held_back():
  choice = Choice(Bytes(), ['END'])
  extend = lambda text, reason='': choice.extend(Bytes().encode(text), reason)  # noqa: E731
  assert [extend('a'), extend('bE'), extend('N'), extend('x'), extend('E', 'stop')] == [
    'a', 'b', '', 'ENx', 'E',
  ]  # fmt: skip


def test_overlap():
  assert [overlap(text, 'aab') for text in ('', 'a', 'aa', 'aaa', 'ba', 'aab', 'b')] == [0, 1, 2, 2, 1, 0, 0]
