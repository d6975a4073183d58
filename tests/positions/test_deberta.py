"""Positions that are projected as contents are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance import tiny
from tfm.mixers.protocol import Context


TOKENS = jnp.array([[3, 1, 4, 1, 5, 2, 6, 5]])


@pytest.mark.slow
@pytest.mark.parametrize('kv_heads', [1, 4])
@pytest.mark.parametrize('terms', ['', ', c2p=False', ', p2c=False'])
def test_borrowed_projections_are_those_of_the_mixer(terms, kv_heads):
  """The same as with projections of its own that are copies."""
  borrowing, owning = (
    tiny.decoder(position=f'deberta(4, norm=True{terms}{also})', kv_heads=kv_heads)
    for also in (', share_qk_projections=True', '')
  )
  params = tiny.parameters(borrowing)
  copies = jax.tree_util.tree_map_with_path(
    lambda path, box: copied(params, [key.key for key in path], box.value.shape),
    tiny.boxed(owning),
    is_leaf=lambda x: hasattr(x, 'names'),
  )
  found, other = (
    jax.jit(lambda p, model=model: model.apply({'params': p}, TOKENS, Context.contiguous(TOKENS))[0])(p)
    for model, p in ((borrowing, params), (owning, copies))
  )
  np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-5)
  assert sum(x.size for x in jax.tree.leaves(params)) < sum(x.size for x in jax.tree.leaves(copies))


def copied(params, path, shape):
  """The parameter of a path, or of the projection of contents that it is a copy of."""
  if path[-2] in ('key', 'query'):
    path = [*path[: path.index('position')], path[-2][0], path[-1]]
  for name in path:
    params = params[name]
  heads = params.ndim - 2
  return (
    params if params.shape == shape else jnp.repeat(params, shape[heads] // params.shape[heads], axis=heads)
  )


def test_a_mixer_that_lends_none_is_refused():
  with pytest.raises(ValueError, match="'longformer.2.' does not project the table"):
    tiny.decoder(mixer='longformer(2)', position='deberta(4, share_qk_projections=True)')
