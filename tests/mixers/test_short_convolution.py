"""The gated short convolution against its formula: rows of documents and padding, whole and in pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.test_attention_kinds import REAL, SEGMENTS, X, draw_params, make_context, make_mixer
from tests.reference.reading import read
from tests.reference.short_convolution import short_convolution


@pytest.mark.parametrize('pieces', [None, (1, 3, 1, 4, 1)], ids=['whole', 'cached'])
@pytest.mark.parametrize(
  'text, bias',
  [('short_convolution', True), ('short_convolution(taps=5)', False), ('short_convolution(taps=1)', True)],
)
def test_formula(text, bias, pieces):
  module = make_mixer(text, bias=bias)
  params = draw_params(module)
  expected = short_convolution(params, X, SEGMENTS)
  y, _ = read(module, params, X, make_context, pieces)
  np.testing.assert_allclose(y[REAL], expected[REAL], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def test_bfloat16():
  params = draw_params(make_mixer('short_convolution'))
  exact, _ = read(make_mixer('short_convolution'), params, X, make_context)
  y, _ = read(make_mixer('short_convolution', dtype='bfloat16'), params, X, make_context)
  error = np.abs(y.astype(np.float32) - exact)[REAL]
  assert y.dtype == jnp.bfloat16 and error.max() < 0.03 * np.abs(exact[REAL]).max()


def test_the_cache_does_not_grow():
  module = make_mixer('short_convolution(taps=5)')
  sizes = [jax.eval_shape(lambda n=n: module.init_cache(2, n)).x.shape for n in (1, 100)]
  assert sizes == [(2, 4, 16)] * 2


def test_dropout_is_refused():
  with pytest.raises(ValueError, match=r'dropout.attention=0.1 drops mixing weights'):
    make_mixer('short_convolution', dropout=dict(attention=0.1))
