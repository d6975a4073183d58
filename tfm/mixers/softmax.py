"""Softmax attention: Position ∘ Score ∘ Mask ∘ Kernel between four projections."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import shrunk, zeros
from tfm.layers.linear import Linear
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.norms.protocol import norm_factory
from tfm.parallel.sharding import shard, with_logical_axes


class Softmax(Mixer):
  """softmax(score(q, k) + bias, where mask) · v, then one projection (Vaswani et al. 2017, §3.2).

  Multi-head attention is kv_heads = heads, multi-query kv_heads = 1 (Shazeer 2019), grouped-query
  anything between (Ainslie et al. 2023). Self- and cross-attention differ in where keys and values
  come from. With a `Memory` the cache that comes back holds its keys and values; handed in as
  `memory` from then on, it is projected once.

  Attributes:
    position, score: factories of this layer's own instances.
    mask, kernel: shared, stateless.
    soft_cap: logits become cap · tanh(logits / cap) (Gemma Team 2024, Gemma 2, §2); 0: they do not.
    qk_norm: a norm over the channels of every query and key before the position, such as 'rmsnorm'
      (Henry et al. 2020; Dehghani et al. 2023, ViT-22B, §2); '': none.
    sinks: whether each head has a learned logit in the denominator, which draws attention to
      nothing (Xiao et al. 2023, §3.3; OpenAI 2025, gpt-oss).
    normalizer: 'softmax', or 'sigmoid' of each logit less log(length of training)
      (Ramapuram et al. 2024, eq. 3 and §3.1).
    value_width: channels of a head's values, d_v of Vaswani et al. 2017, §3.2.2; 0: those of its keys.
    query_init: factor on what the projection of queries starts from: T5's is 1/√C, where others scale the
      score (Raffel et al. 2020, released code).
    biases: the projections that have one, letters of 'qkvo': 'qkv' in Qwen2 (Yang et al. 2024, §2.2.1), '' (none)
      in GPT-J; None: all or none, as `bias` says, which is that of the norms in any case.

  Raises (from `check`):
    ValueError: for a soft_cap or a value_width below 0, a query_init not above 0, an unknown norm or normalizer,
      sinks with 'sigmoid', or biases of what is no projection.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  soft_cap: float = 0.0
  qk_norm: str = ''
  sinks: bool = False
  normalizer: str = 'softmax'
  value_width: int = 0
  query_init: float = 1.0
  biases: str | None = None

  examples = (
    'softmax',
    'softmax(soft_cap=5.0, qk_norm="rmsnorm", sinks=True, biases="ko")',
    'softmax(normalizer="sigmoid", value_width=3)',
  )
  hooks = frozenset({'rotate', 'bias'})
  crosses = True
  lends = True
  tells = True

  def check(self):
    for name in ('soft_cap', 'value_width'):
      if getattr(self, name) < 0:
        raise ValueError(f'{name}={getattr(self, name)} must be 0 (none) or more')
    if self.query_init <= 0:
      raise ValueError(f'query_init={self.query_init} must be above 0; 1.0 leaves queries as they are')
    if self.qk_norm:
      norm_factory(self.qk_norm, self.bias, 'kv')
    if self.normalizer not in ('softmax', 'sigmoid'):
      raise ValueError(f"normalizer={self.normalizer!r} is not there; known: 'softmax', 'sigmoid'")
    given = self.biases or ''
    if not set(given) <= set('qkvo') or len(given) > len(set(given)):
      raise ValueError(
        f"biases={given!r} must be letters of 'qkvo', each once at most; None leaves it to model.bias"
      )
    if self.sinks and self.normalizer == 'sigmoid':
      raise ValueError("sinks=True stand in a denominator, and normalizer='sigmoid' has none; choose one")

  @nn.nowrap
  def init_cache(self, batch, length):
    k, v = ((self.kv_heads, width, self.dtype) for width in (self.head_width, self.values))
    return TokenCache.empty(batch, length, k=k, v=v)

  @property
  def values(self) -> int:
    """Channels of a head's values."""
    return self.value_width or self.head_width

  @nn.compact
  def __call__(self, x, memory, context, cache):
    position = self.position(name='position')
    to = {name: self.projection(name) for name in 'qkv'}
    q = self.project(to['q'], x)
    keys, layout = context, context.layout
    if isinstance(memory, TokenCache):
      keys = cache = memory
      q, _ = position.rotate(q, q, context.positions, context.positions)
    else:
      if memory is not None:
        x, keys = memory.x, memory.context
      k, v = (self.project(to[name], x) for name in 'kv')
      q, k = position.rotate(q, k, context.positions, keys.positions)
      if memory is not None:
        keys = cache = self.init_cache(*k.shape[:2]).append(keys, k=k, v=v)
      elif cache is not None:
        keys = cache = cache.append(context, k=k, v=v)
    if cache is not None:
      k, v, layout = cache['k'], cache['v'], 'arbitrary'
    shared = context.shared.get(position.identity)
    if position.borrows:
      shared = tuple(to[name](shared) for name in 'qk')
    with jax.named_scope('kernel'):
      asked = dict(
        score=self.score(name='score')(),
        mask=self.mask,
        bias=position.bias(shared),
        q_positions=context.positions,
        k_positions=keys.positions,
        q_segments=context.segments,
        k_segments=keys.segments,
        k_prefix=keys.prefix,
        layout=layout,
        sinks=self.param('sinks', with_logical_axes(zeros, ('heads',)), (self.heads,), jnp.float32)
        if self.sinks
        else None,
        normalizer=self.normalizer,
        offset=-math.log(position.length),
        soft_cap=self.soft_cap,
        dropout=self.dropout,
        dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
      )
      y = self.kernel(q, k, v, **asked)
    self.tell(lambda: self.kernel.all_weights(q, k, **asked))
    y = Linear(
      (self.heads, self.values, self.width),
      ('heads', 'kv', 'embed'),
      self.output_initializer,
      contracted=2,
      bias=self.biased('o'),
      dtype=self.dtype,
      name='out',
    )(y)
    return shard(y, 'batch', 'length', 'embed'), cache

  def projection(self, name):
    """That of a letter."""
    axis, heads = ('heads', self.heads) if name == 'q' else ('kv_heads', self.kv_heads)
    width = self.values if name == 'v' else self.head_width
    shrinks = name == 'q' and self.query_init != 1
    initializer = shrunk(self.initializer, self.query_init) if shrinks else self.initializer
    return Linear(
      (self.width, heads, width),
      ('embed', axis, 'kv'),
      initializer,
      bias=self.biased(name),
      dtype=self.dtype,
      name=name,
    )

  def project(self, projection, x):
    y = projection(x)
    if self.qk_norm and projection.name != 'v':
      y = norm_factory(self.qk_norm, self.bias, 'kv')(name=f'{projection.name}_norm')(y)
    return shard(y, 'batch', 'length', projection.axes[1], 'kv')

  def biased(self, letter):
    """Whether the projection of a letter has a bias."""
    return self.bias if self.biases is None else letter in self.biases
