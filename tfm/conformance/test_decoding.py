"""Decoding = training: what is read through a cache, in any pieces, gives the logits of the full pass."""

import jax
import jax.numpy as jnp
import pytest

from tfm.conformance import collect
from tfm.conformance.cached import (
  POSITIONS,
  SEGMENTS,
  SLACK,
  TOKENS,
  require_cached_equals_full,
  require_joined_rows_read_as_alone,
  require_trees_read_as_their_paths,
)
from tfm.conformance.tiny import LENGTH, PREFIX, accepted
from tfm.mixers.protocol import Mixer


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
  'pieces',
  [(5,) + (1,) * 7, (5, 5, 1, 1), (1,) * 12],
  ids=['prefill then steps', 'prefill in pieces', 'steps only'],
)
@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_cached_reading_equals_the_full_pass(mixer, position, mask, pieces):
  tiny = accepted(mixer, position, mask)
  require_cached_equals_full(tiny, f'{mixer} · {position} · {mask}', pieces)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
  'mixer', [text for text in collect.specs('mixer') if collect.variant('mixer', text).supports_decoding]
)
def test_the_cache_keeps_its_form(mixer):
  """A loop over tokens carries the cache, so shapes and types may not change on the way."""
  tiny = accepted(**collect.surroundings(mixer))
  caches = tiny.model.init_caches(3, LENGTH + SLACK)
  context = tiny.context(POSITIONS[:, :5], SEGMENTS[:, :5], PREFIX)
  _, after = jax.eval_shape(tiny.apply, tiny.params, jnp.asarray(TOKENS[:, :5], jnp.int32), context, caches)
  form = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (caches, after)]
  assert form[0] == form[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  'mixer', [text for text in collect.specs('mixer') if collect.variant('mixer', text).supports_decoding]
)
def test_a_row_that_joins_another_reads_on_as_alone(mixer):
  require_joined_rows_read_as_alone(accepted(**collect.surroundings(mixer)), mixer)


def claims_trees(mixer):
  return collect.variant('mixer', mixer).supports_trees not in (False, Mixer.supports_trees)


@pytest.mark.sampled(3)
@pytest.mark.parametrize('mixer', [*filter(claims_trees, collect.specs('mixer'))])
def test_a_tree_of_tokens_is_read_as_its_paths(mixer):
  tiny = accepted(**collect.surroundings(mixer))
  assert tiny.model.stack().supports_trees
  require_trees_read_as_their_paths(tiny, mixer)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
  'position',
  [text for text in collect.specs('position') if collect.variant('position', text).has_blockwise_bias],
)
def test_positions_place_the_tokens_of_a_tree(position):
  require_trees_read_as_their_paths(accepted('softmax', position, 'causal'), position)
