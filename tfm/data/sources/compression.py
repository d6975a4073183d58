"""Compression: a text that one vector is to hold."""

import dataclasses
import random

from tfm.data import synthetic_task
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Compression(synthetic_task.LengthTask):
  """. t3 t1 t3 … =: random symbols, which are all answers, and the token whose hidden state is to hold them
  (Poli et al. 2024, MAD, §3.1); for the objective `reconstruction`.

  Attributes:
    length, longer: the number of symbols of a text, without the dot and the last token, in training and in
      the test split; all texts of a split have the same length; longer=None: the test split is as training.
      A text of the paper has 32 tokens with the last one.
    vocabulary: the number of different symbols; one less than the paper counts, which is 16.
  """

  length: Size = 31
  longer: Size | None = None
  vocabulary: Size = 15

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    symbols = draw.choices(range(1, self.vocabulary + 1), k=self.max_length(is_test))
    return synthetic_task.format_example(
      [('.', False), *((f' t{symbol}', True) for symbol in symbols), (' =', False)]
    )
