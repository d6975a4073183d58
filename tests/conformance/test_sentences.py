"""Failures of the conformance suite name the variant, the tokens and what is wrong."""

import dataclasses

import numpy as np
import pytest

from tfm.conformance import biases, sentences
from tfm.masks.protocol import Mask
from tfm.positions.alibi import Alibi


def test_a_leak_is_named():
  gradients, hidden = np.zeros((12, 12)), np.triu(np.ones((12, 12), bool), 1)
  sentences.require_no_influence(gradients, hidden, 'retention')
  gradients[5, 9] = 0.03
  with pytest.raises(AssertionError, match=r'^retention: output 5 depends on input 9 \(gradient 3e-02\)'):
    sentences.require_no_influence(gradients, hidden, 'retention')
  with pytest.raises(AssertionError, match='^retention: output 0 does not depend on input 0, and 11 more'):
    sentences.require_influence(gradients, np.eye(12, dtype=bool), 'retention')


def test_other_logits_are_named():
  logits = np.zeros((7, 29))
  sentences.require_same_logits(logits, logits, 'rope', 'with padding')
  with pytest.raises(
    AssertionError, match='^rope: with padding, token 4 of a document of 7 has other logits than alone'
  ):
    sentences.require_same_logits(logits, logits + np.eye(7, 29, -4), 'rope', 'with padding')


def test_values_that_are_not_finite_are_named():
  with pytest.raises(AssertionError, match=r'^x: 2 values are not finite, the first at \[1, 0\]'):
    sentences.require_finite(np.array([[0, 1], [np.nan, np.inf]]), 'x')


def test_a_difference_of_attention_is_named():
  out, gradients = np.ones((2, 3)), [np.ones(2)] * 3 + [None, {'slope': np.ones(4)}, None]
  sentences.require_same_attention((out, gradients), (out, gradients), 1e-5, 'ring')
  other = [*gradients[:4], {'slope': np.array([1, 1, 3, 1])}, None]
  with pytest.raises(
    AssertionError,
    match=r'^ring: the gradient of the bias at \[2\] is 1, not 3; the largest difference is 2.0e\+00',
  ):
    sentences.require_same_attention((out, gradients), (out, other), 1e-5, 'ring')
  with pytest.raises(AssertionError, match=r'^ring: the output has the shape \(2, 3\), not \(1, 3\)'):
    sentences.require_same_attention((out, gradients), (out[:1], gradients), 1e-5, 'ring')


@dataclasses.dataclass(frozen=True)
class Strided(Mask):
  """Every third key of a document, which is no function of q - k."""

  relative = True

  def __call__(self, q, k):
    return (k <= q) & (k % 3 == 0)


def test_a_mask_that_is_not_relative_is_named():
  assert sentences.find_relative_lie(Strided()) == (
    'relative=True, but query 0 sees key 0 only where positions start at 0, not 1'
  )


def test_a_bias_whose_parameters_are_hidden_in_a_closure_is_named(monkeypatch):
  monkeypatch.setattr(biases, 'apply_position', lambda text, evaluate: lambda q, k: 0)
  with pytest.raises(
    AssertionError, match=r'^window: bias returns a value of type function; return jax.tree_util.Partial\('
  ):
    biases.make_bias('window')


def test_a_bias_that_depends_on_more_than_the_distance_is_named(monkeypatch):
  """Falcon's products of slopes and positions are rounded, each by itself."""
  monkeypatch.setattr(Alibi, 'has_relative_bias', True)
  biases.find_bias_fault.cache_clear()
  assert not biases.find_bias_fault('alibi')
  assert biases.find_bias_fault('alibi(rounded=True)').startswith(
    'alibi(rounded=True): the bias 301 positions further on, at the same distances, is another one'
  )
  biases.find_bias_fault.cache_clear()
