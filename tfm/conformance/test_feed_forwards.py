"""Feed-forward layers of all kinds: decoding = training, packing and the mesh change nothing."""

import functools

import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.rows import PAD, row, rows
from tfm.conformance.sentences import require_finite, require_same_logits
from tfm.conformance.test_decoding import POSITIONS, SEGMENTS, SLACK, TOKENS
from tfm.conformance.test_mesh import Sharded, axes, equal_on
from tfm.conformance.test_packing import A, B
from tfm.conformance.tiny import LENGTH, Tiny
from tfm.feed_forwards._mlp import MLP
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


SPECS = collect.specs('feed_forward')
# Among those that take every token by itself one is enough for a quick run.
PLAIN = [
  text for text in SPECS if issubclass(collect.variant('feed_forward', text), MLP) and text != 'swiglu'
]
TRIED = [pytest.param(text, marks=[pytest.mark.slow] if text in PLAIN else []) for text in SPECS]
# Those that choose among the tokens of a row need it whole, and to themselves.
ALONE = [text for text in SPECS if collect.variant('feed_forward', text).reads_other_tokens]
TOKEN_BY_TOKEN = [param for param in TRIED if param.values[0] not in ALONE]
tiny = functools.cache(lambda text: Tiny(feed_forward=text))


@pytest.mark.sampled(2)
@pytest.mark.parametrize('pieces', [(5, 5, 1, 1), (1,) * 12], ids=['prefill in pieces', 'steps only'])
@pytest.mark.parametrize('text', TOKEN_BY_TOKEN)
def test_cached_reading_equals_the_full_pass(text, pieces):
  full, _ = tiny(text)(TOKENS, POSITIONS, SEGMENTS)
  caches = tiny(text).model.init_caches(len(TOKENS), LENGTH + SLACK)
  read, start = [], 0
  for piece in pieces:
    here = slice(start, start + piece)
    logits, caches = tiny(text)(TOKENS[:, here], POSITIONS[:, here], SEGMENTS[:, here], caches)
    read.append(logits)
    start += piece
  real = SEGMENTS > 0
  situation = f'read through a cache in pieces of {pieces}'
  require_same_logits(np.concatenate(read, 1)[real], full[real], text, situation)


@pytest.mark.parametrize('text', TOKEN_BY_TOKEN)
def test_packed_and_padded_documents_have_the_logits_of_each_alone(text):
  inputs = row(A, B), row(B, (PAD, 2), A[:5]), row((PAD, 3), A, (PAD, 2))
  together, _ = tiny(text)(*rows(*inputs))
  a, _ = tiny(text)(*rows(row(A)))
  b, _ = tiny(text)(*rows(row(B)))
  require_finite(together, f'logits of {text}')
  for i, j, expected in ((0, 0, a[0]), (0, 1, b[0]), (1, 0, b[0]), (1, 1, a[0, :5]), (2, 0, a[0])):
    situation = f'document {j} of the row {i}'
    require_same_logits(together[i, inputs[i][1][j]], expected, text, situation)


@pytest.mark.parametrize('text', ALONE)
def test_padding_changes_nothing(text):
  alone, _ = tiny(text)(*rows(row(A)))
  padded = row((PAD, 3), A, (PAD, 2))
  together, _ = tiny(text)(*rows(padded))
  require_same_logits(together[0, padded[1][0]], alone[0], text, 'between padding')


def sharded(text, rules):
  result = Sharded(feed_forward=text)
  result.config.rules.update(rules)
  result.rules = sharding.parse_rules(result.config.rules)
  return result


@pytest.mark.sampled(0)
@pytest.mark.parametrize('text', TRIED)
def test_the_mesh_changes_nothing(text):
  equal_on(sharded(text, {}), axes((2, 2, 2)))


# With a capacity that drops choices too: rows are what counts, wherever they lie.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'text', ['mixture_of_experts(shared=1)', 'mixture_of_experts(capacity=0.75)', 'expert_choice']
)
@pytest.mark.parametrize(
  'sizes, rules, cut',
  [
    ((2, 2, 2), dict(expert='tensor', mlp=''), (4, 16, 32)),
    pytest.param((1, 2, 4), dict(expert='fsdp', embed=''), (4, 32, 8), marks=pytest.mark.slow),
    pytest.param(
      (2, 2, 2), dict(expert='fsdp tensor', embed='', mlp=''), (2, 32, 32), marks=pytest.mark.slow
    ),
  ],
  ids=str,
)
def test_experts_may_be_cut_over_any_axis(text, sizes, rules, cut):
  setup = sharded(text, rules)
  equal_on(setup, axes(sizes))
  _, params, _ = setup.on(meshes.make(axes(sizes)))
  kernel = params['stack']['layers']['block_0']['feed_forward']['up']['kernel']
  assert kernel.shape[1:] == (8, 32, 32) and kernel.addressable_shards[0].data.shape[1:] == cut
