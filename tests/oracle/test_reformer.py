"""The hash is that of transformers' LSHSelfAttention; so is attention where the definitions coincide.

They do where all of a row is one bucket and within reach: ours looks back by ranks in the bucket, theirs
by cuts of the sorted row, and across buckets.
"""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers import ReformerConfig  # noqa: E402
from transformers.models.reformer.modeling_reformer import LSHSelfAttention  # noqa: E402

from tfm.config import assemble  # noqa: E402
from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402
from tfm.mixers.reformer import hash_to_buckets  # noqa: E402


B, T, D, H, C, BUCKETS, SEED = 2, 16, 12, 3, 4, 6, 5
DRAW = np.random.default_rng(0)


def published(chunk, hashes, causal=True):
  torch.manual_seed(0)
  module = LSHSelfAttention(
    ReformerConfig(
      hidden_size=D,
      num_attention_heads=H,
      attention_head_size=C,
      num_buckets=BUCKETS,
      num_hashes=hashes,
      lsh_attn_chunk_length=chunk,
      lsh_num_chunks_before=1,
      lsh_num_chunks_after=0,
      is_decoder=causal,
      hash_seed=SEED,
      lsh_attention_probs_dropout_prob=0.0,
    )
  ).eval()
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.5)
  return module


@pytest.mark.parametrize('hashes', [1, 4])
def test_buckets(hashes):
  vectors = DRAW.standard_normal((B, T, H, C)).astype(np.float32)
  torch.manual_seed(SEED)
  rotations = torch.randn(H, C, hashes, BUCKETS // 2)
  theirs = published(4, hashes)._hash_vectors(torch.tensor(vectors).transpose(1, 2), hashes, None)
  # Theirs counts on from round to round.
  theirs = theirs.reshape(B, H, hashes, T).numpy() - BUCKETS * np.arange(hashes)[:, None]
  ours = hash_to_buckets(jnp.asarray(vectors), jnp.asarray(rotations.numpy()))
  np.testing.assert_array_equal(ours, theirs.transpose(0, 3, 1, 2))
  assert len(np.unique(ours)) == BUCKETS


@pytest.mark.parametrize(
  'chunk, hashes, causal',
  [
    (T, 1, True),
    (T, 1, False),  # no longer than a chunk: theirs does not hash
    (T // 2, 1, True),
    (T // 2, 3, True),
  ],
)  # two chunks of one bucket, all of which the second sees
def test_attention(chunk, hashes, causal, monkeypatch, record_difference):
  module, x = published(chunk, hashes, causal), DRAW.standard_normal((B, T, D)).astype(np.float32)
  # In both, all tokens share a bucket in every round; theirs numbers on from round to round.
  one_each = torch.arange(hashes).repeat_interleave(T).expand(B, H, -1)
  monkeypatch.setattr(
    'tfm.mixers.reformer.hash_to_buckets', lambda q, _: jnp.zeros((B, T, H, hashes), jnp.int32)
  )
  with torch.no_grad():
    theirs = module(torch.tensor(x), buckets=one_each).hidden_states.numpy()
  w = {name: value.numpy() for name, value in module.state_dict().items()}
  params = {
    ours: dict(kernel=w[f'{name}.weight'].T.reshape(D, H, C))
    for ours, name in (('qk', 'query_key'), ('v', 'value'))
  }
  # Theirs ends before the projection out: an identity shows ours.
  params['out'] = dict(kernel=np.eye(D, dtype=np.float32).reshape(H, C, D))
  config = resolve_config(
    complete(
      dict(
        data=dict(length=T),
        model=dict(
          width=D,
          heads=H,
          head_width=C,
          position='none',
          mask='causal' if causal else 'full',
          mixer=f'reformer(buckets=2, chunk={T}, hashes={hashes})',
        ),
      )
    )
  )
  mixer = assemble.build_block(Experiment(config), 'model', config.model, causal=causal)().mixer()
  y, _ = mixer.apply(
    {'params': params}, jnp.asarray(x), None, Context.contiguous(jnp.asarray(x[..., 0])), None
  )
  # The first token sees only itself: the sum of theirs over rounds is rounded at logits of -1e5 then.
  visible = slice(int(causal and hashes > 1), None)
  y, theirs = y[:, visible], theirs[:, visible]
  np.testing.assert_allclose(y, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
  record_difference('mixer/reformer', 'transformers', y, theirs)
