"""Documents of random tokens, and a tokenizer for them."""

import numpy as np

from tests.models import test_encoder
from tfm.data.tokens import Tokens


VOCAB = test_encoder.VOCAB - 1


class NumberedTokenizer:
  """The attributes of a tokenizer that objectives read."""

  vocab_size, eos_id, special_token_ids = VOCAB, 0, {}
  pieces = [b''] + [(b' ' if i % 3 == 0 else b'') + b'x%d' % i for i in range(1, VOCAB)]


def random_tokens(documents=40, size=60, seed=0):
  """Documents of size / 2 … size random tokens."""
  draw = np.random.default_rng(seed)
  lengths = draw.integers(size // 2, size, documents)
  offsets = np.concatenate([[0], np.cumsum(lengths)])
  return Tokens('made up', draw.integers(1, VOCAB, offsets[-1]), offsets, eos_id=0, bytes=1)
