"""DeBERTa positions that share the query and key projections of the mixer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.conformance import tiny
from tfm.mixers.protocol import Context


TOKENS = jnp.array([[3, 1, 4, 1, 5, 2, 6, 5]])


@pytest.mark.slow
@pytest.mark.parametrize('kv_heads', [1, 4])
@pytest.mark.parametrize('terms', ['', ', c2p=False', ', p2c=False'])
def test_shared_projections_equal_copies_of_the_mixers(terms, kv_heads):
  """Equal to a model with separate projections that are copies of the mixer's."""
  sharing, separate = (
    tiny.decoder(position=f'deberta(4, norm=True{terms}{option})', kv_heads=kv_heads)
    for option in (', share_qk_projections=True', '')
  )
  params = tiny.parameters(sharing)
  copies = jax.tree_util.tree_map_with_path(
    lambda path, box: copy_param(params, [key.key for key in path], box.value.shape),
    tiny.boxed(separate),
    is_leaf=lambda x: hasattr(x, 'names'),
  )
  shared_logits, separate_logits = (
    jax.jit(lambda p, model=model: model.apply({'params': p}, TOKENS, Context.contiguous(TOKENS))[0])(p)
    for model, p in ((sharing, params), (separate, copies))
  )
  np.testing.assert_allclose(shared_logits, separate_logits, rtol=1e-5, atol=1e-5)
  assert sum(x.size for x in jax.tree.leaves(params)) < sum(x.size for x in jax.tree.leaves(copies))


def copy_param(params, path, shape):
  """The parameter at a path; for a projection of positions, a copy of the mixer's."""
  if path[-2] in ('key', 'query'):
    path = [*path[: path.index('position')], path[-2][0], path[-1]]
  for name in path:
    params = params[name]
  heads = params.ndim - 2
  return (
    params if params.shape == shape else jnp.repeat(params, shape[heads] // params.shape[heads], axis=heads)
  )


def test_mixer_without_shared_projections_is_rejected():
  with pytest.raises(ValueError, match="'longformer.2.' does not project the table"):
    tiny.decoder(mixer='longformer(2)', position='deberta(4, share_qk_projections=True)')
