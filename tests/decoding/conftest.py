"""Fixtures of the decoding tests."""

import numpy as np
import pytest

from tests.decoding.tiny import VOCAB, tiny_model


@pytest.fixture(scope='session')
def tiny():
  return tiny_model()


@pytest.fixture
def prompts():
  """Prompts with lengths inside, at and beyond the prefill widths."""
  random = np.random.default_rng(0)
  return [random.integers(1, VOCAB, n, dtype=np.int32) for n in (1, 16, 17, 5, 30, 2)]
