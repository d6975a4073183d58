"""Local attention beside global attention, each with projections of its own."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.linear import Linear
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard


class Longformer(Mixer):
  """Two attentions under one mask: global tokens, a document's first, ask with one set of projections, the
  others with another (Beltagy et al. 2020, §3.1, "Linear projections for global attention").

    y_t = attend(W_Qg x_t, W_Kg x, W_Vg x)  where t < global_tokens
          attend(W_Q x_t, W_K x, W_V x)     elsewhere

  Both see what `mask` shows the token. The paper's pattern is the mask 'longformer(window,
  global_tokens)' with the same number of global tokens, under 'causal' in a decoder; the others see
  the global tokens by W_K and W_V, as in the published code.

  With longformer(0) the global tokens, if any, are told: those of the prefix, t < prefix_t, which the context
  may tell of each token apart (position + 1 makes it one, -1 does not). They see all of their document and
  are seen by all of it.

  Attributes:
    position, score: factories of this layer's own instances, for both attentions.
    mask, kernel: shared, stateless.
    global_tokens: n, the first tokens of each document; 0: those of the prefix, in an encoder.

  Raises (from `check`):
    ValueError: for fewer than none.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  global_tokens: int

  examples = ('longformer(2)',)
  position_hooks = frozenset({'rotate', 'bias'})
  exposes_attention = True

  def check(self):
    if self.global_tokens < 0:
      raise ValueError(
        f"global_tokens={self.global_tokens} must be 1 or more, or 0: told; 'softmax' does without"
      )

  @property
  def is_noncausal(self):
    return self.global_tokens == 0

  @nn.nowrap
  def init_cache(self, batch, length):
    kept = self.kv_heads, self.head_width, self.dtype
    return TokenCache.empty(batch, length, k=kept, v=kept, k_global=kept, v_global=kept)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    if memory is not None:
      raise ValueError("mixer='longformer' does not support cross-attention; use 'softmax'")
    position = self.position(name='position')
    score, bias = self.score(name='score')(), position.bias(context.shared.get(position.sharing_key))
    read, keys, layout = {}, context, context.layout
    for kind in ('', '_global'):
      q, k, v = (self.project(f'{name}{kind}', x) for name in 'qkv')
      q, k = position.rotate(q, k, context.positions, context.positions)
      read |= {f'q{kind}': q, f'k{kind}': k, f'v{kind}': v}
    if cache is not None:
      keys = cache = cache.append(context, **read)
      read |= {name: cache[name] for name in cache.kept}
      layout = 'arbitrary'

    told, count = not self.global_tokens and context.prefix is not None, self.global_tokens
    # In a row of one document global tokens stand first, and no other need ask.
    first = x.shape[1] if told or count and layout != 'contiguous' else min(count, x.shape[1])
    masks = {'': self.mask, '_global': self.mask}
    if told:
      masks = {'': self.mask.or_prefix(), '_global': self.mask | ~self.mask}  # the latter is everything

    def asked(kind, queries):
      """By the first so many queries."""
      return dict(
        score=score,
        mask=masks[kind],
        bias=bias,
        q_positions=context.positions[:, :queries],
        k_positions=keys.positions,
        q_segments=context.segments[:, :queries],
        k_segments=keys.segments,
        k_prefix=keys.prefix,
        layout=layout,
        dropout=self.dropout,
      )

    def attend(kind, queries):
      """By one set of projections."""
      with jax.named_scope('kernel'):
        return self.kernel(
          read[f'q{kind}'][:, :queries],
          read[f'k{kind}'],
          read[f'v{kind}'],
          **asked(kind, queries),
          dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
        )

    def weights(kind, queries):
      found = self.kernel.all_weights(read[f'q{kind}'][:, :queries], read[f'k{kind}'], **asked(kind, queries))
      return found.swapaxes(1, 2)

    def by_kind(ask):
      """[B T …]: what global tokens get by their set of projections, and the others by theirs."""
      y = ask('', None)
      if not first:
        return y
      top = ask('_global', first)
      is_global = (context.positions < (context.prefix if told else count))[:, :first, None, None]
      return jnp.concatenate([jnp.where(is_global, top, y[:, :first]), y[:, first:]], 1)

    y = by_kind(attend)
    self.sow_attention(lambda: by_kind(weights).swapaxes(1, 2))
    y = Linear(
      (self.heads, self.head_width, self.width),
      ('heads', 'kv', 'embed'),
      self.output_initializer,
      contracted=2,
      bias=self.bias,
      dtype=self.dtype,
      name='out',
    )(y)
    return shard(y, 'batch', 'length', 'embed'), cache

  def project(self, name, x):
    axis, heads = ('heads', self.heads) if name.startswith('q') else ('kv_heads', self.kv_heads)
    y = Linear(
      (self.width, heads, self.head_width),
      ('embed', axis, 'kv'),
      self.initializer,
      bias=self.bias,
      dtype=self.dtype,
      name=name,
    )(x)
    return shard(y, 'batch', 'length', axis, 'kv')
