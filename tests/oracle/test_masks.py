"""Who sees whom is what it is in the published implementations, in transformers (PyTorch).

Where they have a mask, it is compared; where they compute blocks, the Jacobian of one layer of attention
tells: what a query does not see has no influence on its output.
"""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

from transformers import masking_utils  # noqa: E402
from transformers.models.big_bird import modeling_big_bird  # noqa: E402
from transformers.models.longformer import modeling_longformer  # noqa: E402

import tfm.masks  # noqa: E402
from tfm import spec  # noqa: E402
from tfm.masks.protocol import Mask, table  # noqa: E402


WIDTH = 8


def ours(text, length):
  return table(spec.build(text, tfm.masks, Mask), length)


def theirs(overlay, length):
  """A causal mask and an overlay, evaluated at every pair of indices."""
  build_inputs = masking_utils.and_masks(masking_utils.causal_mask_function, overlay)
  return [
    [bool(build_inputs(0, 0, torch.tensor(q), torch.tensor(k))) for k in range(length)] for q in range(length)
  ]


def influence(attend, length):
  """[T T]: whether the output at t depends on the input at s."""
  x = torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(0))
  jacobian = torch.autograd.functional.jacobian(lambda x: attend(x[None])[0], x)  # [T D T D]
  return (jacobian.abs().amax((1, 3)) > 0).numpy()


@pytest.mark.parametrize('chunk', [1, 3, 8, 40])
def test_chunked_is_llama4s(chunk):
  overlay = masking_utils.chunked_overlay(chunk, left_padding=torch.zeros(1, dtype=int))
  np.testing.assert_array_equal(ours(f'causal & chunked({chunk})', 20), theirs(overlay, 20))


@pytest.mark.parametrize('window', [1, 4])
def test_window_is_mistrals(window):
  """Theirs counts the token itself."""
  np.testing.assert_array_equal(
    ours(f'causal & window({window - 1})', 20), theirs(masking_utils.sliding_window_overlay(window), 20)
  )


@pytest.mark.parametrize('window, tokens', [(2, 0), (2, 1), (3, 2), (4, 5)])
def test_longformer(window, tokens):
  length = 24
  config = transformers.LongformerConfig(
    hidden_size=WIDTH, num_attention_heads=2, attention_window=[2 * window], attention_probs_dropout_prob=0.0
  )
  torch.manual_seed(0)
  layer = modeling_longformer.LongformerSelfAttention(config, layer_id=0).eval()
  mask = torch.zeros(1, length)
  mask[:, :tokens] = 10000.0  # global; 0 is local

  def attend(x):
    return layer(
      x,
      attention_mask=mask,
      is_index_masked=mask < 0,
      is_index_global_attn=mask > 0,
      is_global_attn=tokens > 0,
    )[0]

  np.testing.assert_array_equal(influence(attend, length), ours(f'longformer({window}, {tokens})', length))


def big_bird(block, random, length, training):
  """One layer of block-sparse attention as a function of x; training draws the random blocks."""
  config = transformers.BigBirdConfig(
    hidden_size=WIDTH,
    num_attention_heads=1,
    block_size=block,
    num_random_blocks=random,
    use_bias=True,
    attention_type='block_sparse',
    max_position_embeddings=length,
  )
  torch.manual_seed(0)
  layer = modeling_big_bird.BigBirdBlockSparseAttention(config, seed=3).train(training)
  blocked, band, row, column = modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
    torch.ones(1, length), block
  )
  return lambda x: layer(x, band, row, column, blocked, blocked)[0]


def with_last(seen, block):
  """The same where the last block too is global, as it is in theirs."""
  seen = seen.copy()
  seen[-block:], seen[:, -block:] = True, True
  return seen


def test_bigbird_without_the_random_blocks():
  """Evaluated, theirs has the first block, seen anyway, in the random ones' place."""
  block, length = 2, 32
  found = influence(big_bird(block, 3, length, training=False), length)
  np.testing.assert_array_equal(
    found, with_last(ours(f'bigbird({block}, random=0, window=1, global_tokens={block})', length), block)
  )


def test_bigbird_draws_as_many_blocks_from_the_same():
  block, random, blocks = 2, 3, 16
  length = block * blocks
  fixed = with_last(ours(f'bigbird({block}, 0, 1, {block})', length), block)
  found = influence(big_bird(block, random, length, training=True), length) & ~fixed
  # The last block is out of the draw there: it is seen.
  drawn = ours(f'bigbird({block}, {random}, 1, {block}, seed=3, blocks={blocks - 1})', length) & ~fixed
  middle = slice(block, -block)
  np.testing.assert_array_equal(found[middle].sum(-1), block * random)
  np.testing.assert_array_equal(drawn[middle].sum(-1), block * random)
  for seen in (found, drawn):
    cut = seen.reshape(blocks, block, blocks, block)
    assert (cut == cut[:, :1, :, :1]).all()
