"""Assertions that say what is wrong in a variant's own terms."""

import functools

import jax
import numpy as np

from tfm.conformance import collect


def require_no_influence(gradients, hidden, name):
  """Fails if an output depends on an input that is hidden from it.

  Args:
    gradients: [T, T], of output t with respect to input j; hidden: [T, T]; name: of what is tried.
  """
  leaks = np.argwhere((gradients != 0) & hidden)
  assert not len(leaks), '{}: output {} depends on input {} (gradient {:.0e}){}'.format(
    name, *leaks[0], gradients[tuple(leaks[0])], f', and {len(leaks) - 1} more' * (len(leaks) > 1)
  )


def require_influence(gradients, visible, name):
  """Fails if an output does not depend on an input of which it should."""
  missing = np.argwhere((gradients == 0) & visible)
  assert not len(missing), '{}: output {} does not depend on input {}{}'.format(
    name, *missing[0], f', and {len(missing) - 1} more' * (len(missing) > 1)
  )


def require_finite(values, name):
  """Fails if a value is infinite or NaN."""
  wrong = np.argwhere(~np.isfinite(values))
  assert not len(wrong), f'{name}: {len(wrong)} values are not finite, the first at {wrong[0].tolist()}'


def require_same_logits(logits, expected, name, situation):
  """Fails if the logits of a document, [T V], depend on where it stands.

  Args:
    situation: how `logits` were computed, such as 'after another document in its row'.
  """
  wrong = ~np.isclose(logits, expected, rtol=2e-5, atol=2e-5).all(-1)
  if wrong.any():
    token = int(np.argmax(wrong))
    difference = np.abs(logits - expected).max()
    raise AssertionError(
      f'{name}: {situation}, token {token} of a document of {len(logits)} has other logits than alone; '
      f'the largest difference is {difference:.1e}'
    )


def require_same_attention(found, expected, tolerance, name):
  """Fails if an output of attention differs, or a gradient.

  Args:
    found, expected: (output, gradients of q, k, v, score, bias and sinks), as arrays and trees of arrays.
  """
  names = 'output', *(f'gradient of {of}' for of in ('q', 'k', 'v', 'the score', 'the bias', 'the sinks'))
  for what, one, other in zip(names, (found[0], *found[1]), (expected[0], *expected[1]), strict=True):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
      x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
      assert x.shape == y.shape, f'{name}: the {what} has the shape {x.shape}, not {y.shape}'
      wrong = np.argwhere(~np.isclose(x, y, rtol=tolerance, atol=tolerance))
      assert not len(wrong), (
        f'{name}: the {what} at {wrong[0].tolist()} is {x[tuple(wrong[0])]:.5g}, '
        f'not {y[tuple(wrong[0])]:.5g}; the largest difference is {np.abs(x - y).max():.1e}'
      )


def find_relative_lie(mask, length=12):
  """A sentence about a mask that says `relative` but depends on where the document starts, or ''."""
  index = np.arange(length)
  expected = np.broadcast_to(mask(index[:, None], index[None, :]), (length, length))
  for start in range(1, length):
    shifted = np.broadcast_to(mask(index[:, None] + start, index[None, :] + start), (length, length))
    if (wrong := np.argwhere(shifted != expected)).size:
      q, k = wrong[0]
      only = 'only' if expected[q, k] else 'except'
      return f'relative=True, but query {q} sees key {k} {only} where positions start at 0, not {start}'
  return ''


@functools.cache
def find_mask_fault(text) -> str:
  """What is wrong with a mask alone: a sentence, or ''."""
  mask, (q, k) = collect.mask(text).bind_prefix(5), np.indices((12, 12))
  if mask.relative and (lie := find_relative_lie(mask)):
    return f'{text}: {lie}'
  host = mask(q, k)
  if not isinstance(host, np.ndarray) or host.dtype != bool or host.shape != q.shape:
    return f'{text}: for NumPy arrays it returns {type(host).__name__}, not an array of bool of their shape'
  alone = np.array([[bool(mask(np.array([i]), np.array([j]))[0]) for j in range(12)] for i in range(12)])
  if (wrong := np.argwhere(host != alone)).size:
    return '{}: whether query {} sees key {} depends on the other pairs of the array'.format(text, *wrong[0])
  return ''
