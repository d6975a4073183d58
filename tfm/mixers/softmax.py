"""Softmax attention: Position ∘ Score ∘ Mask ∘ Kernel between four projections."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import scale_initializer, zeros
from tfm.layers.linear import Linear
from tfm.mixers._head_projections import project_from_heads
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.norms.protocol import norm_factory
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.spec import NonNegativeFloat, PositiveFloat, SizeOrZero


class Softmax(Mixer):
  """softmax(score(q, k) + bias) · v over the keys that the mask shows, between projections to q, k, v and one
  of the output (Vaswani et al. 2017, §3.2).

  Multi-head attention is kv_heads = heads, multi-query kv_heads = 1 (Shazeer 2019), grouped-query
  anything between (Ainslie et al. 2023). Self- and cross-attention differ in the source of keys and values.
  Given a `Memory`, the returned cache holds its keys and values; pass that cache as `memory` from then on, so
  that the memory is projected only once.

  Attributes:
    position, score: factories of this layer's modules: how positions enter, and the function (q, k) → logits.
    mask: which key position a query position may see.
    kernel: the algorithm that computes attention, such as 'dense' or 'chunked'; all compute the same numbers.
    soft_cap: logits become cap · tanh(logits / cap) (Gemma Team 2024, Gemma 2, §2); 0: no cap.
    qk_norm: a norm over the channels of every query and key before the position, such as 'rmsnorm'
      (Henry et al. 2020; Dehghani et al. 2023, ViT-22B, §2); '': none.
    sinks: whether each head has a learned logit in the softmax denominator, so that it can attend to nothing
      (Xiao et al. 2023, §3.3; OpenAI 2025, gpt-oss).
    normalizer: 'softmax', or 'sigmoid' of each logit minus log(training length)
      (Ramapuram et al. 2024, eq. 3 and §3.1).
    value_width: channels of a head's values, d_v of Vaswani et al. 2017, §3.2.2; 0: as many as its keys have.
    query_init_scale: factor on the initial query projection: T5 uses 1/√C there instead of scaling the score
      (Raffel et al. 2020, released code).
    biases: the projections with a bias, letters of 'qkvo': 'qkv' in Qwen2 (Yang et al. 2024, §2.2.1), ''
      (none) in GPT-J; None: all or none, by `bias`, which also decides the bias of the norms.

  Raises (from `validate`):
    ValueError: for an unknown norm or normalizer, sinks with 'sigmoid', or letters in `biases` that name no
      projection.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  soft_cap: NonNegativeFloat = 0.0
  qk_norm: str = ''
  sinks: bool = False
  normalizer: str = 'softmax'
  value_width: SizeOrZero = 0
  query_init_scale: PositiveFloat = 1.0
  biases: str | None = None

  examples = (
    'softmax',
    'softmax(soft_cap=5.0, qk_norm="rmsnorm", sinks=True, biases="ko")',
    'softmax(normalizer="sigmoid", value_width=3)',
  )
  position_hooks = frozenset({'rotate', 'bias'})
  supports_cross_attention = True
  supports_mup = True
  projects_position_table = True
  exposes_attention = True

  def validate(self):
    if self.qk_norm:
      norm_factory(self.qk_norm, self.bias, 'kv')
    if self.normalizer not in ('softmax', 'sigmoid'):
      raise ValueError(f"normalizer={self.normalizer!r} is unknown; known: 'softmax', 'sigmoid'")
    letters = self.biases or ''
    if not set(letters) <= set('qkvo') or len(letters) > len(set(letters)):
      raise ValueError(
        f"biases={letters!r} must be letters of 'qkvo', each at most once; None follows model.bias"
      )
    if self.sinks and self.normalizer == 'sigmoid':
      raise ValueError(
        "sinks=True needs a softmax denominator, and normalizer='sigmoid' has none; choose one"
      )

  @nn.nowrap
  def init_cache(self, batch, length):
    k, v = ((self.kv_heads, width, self.dtype) for width in (self.head_width, self.head_value_width))
    return TokenCache.empty(batch, length, k=k, v=v)

  @property
  def head_value_width(self) -> int:
    """Channels of a head's values."""
    return self.value_width or self.head_width

  @nn.compact
  def __call__(self, x, memory, context, cache):
    position = self.position(name='position')
    projections = {letter: self.make_projection(letter) for letter in 'qkv'}
    q = self.project(projections['q'], x)
    # Keys and values come from one of four places: this sequence (training), this sequence and its cache
    # (decoding), a memory (cross-attention), or the cache of a memory that was projected before.
    key_source, layout = context, context.layout
    if isinstance(memory, TokenCache):
      key_source = cache = memory
      q, _ = position.rotate(q, q, context.positions, context.positions)
    else:
      if memory is not None:
        x, key_source = memory.x, memory.context
      k, v = (self.project(projections[letter], x) for letter in 'kv')
      q, k = position.rotate(q, k, context.positions, key_source.positions)
      if memory is not None:
        key_source = cache = self.init_cache(*k.shape[:2]).append(key_source, k=k, v=v)
      elif cache is not None:
        key_source = cache = cache.append(context, k=k, v=v)
    if cache is not None:
      k, v, layout = cache['k'], cache['v'], 'arbitrary'
    position_table = context.position_tables.get(position.table_key)
    if position.uses_qk_projections:
      position_table = tuple(projections[letter](position_table) for letter in 'qk')
    with jax.named_scope('kernel'):
      inputs = dict(
        score=self.score(name='score')(),
        mask=self.mask,
        bias=position.bias(position_table),
        has_blockwise_bias=position.has_blockwise_bias,
        q_positions=context.positions,
        k_positions=key_source.positions,
        q_segments=context.segments,
        k_segments=key_source.segments,
        k_prefix=key_source.prefix,
        layout=layout,
        sinks=self.make_sinks(),
        normalizer=self.normalizer,
        sigmoid_offset=-math.log(position.length),
        soft_cap=self.soft_cap,
        dropout=self.dropout,
        dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
      )
      y = self.kernel(q, k, v, **inputs)
    self.sow_attention(lambda: self.kernel.attention_weights(q, k, **inputs))
    return project_from_heads(self, y, self.has_bias('o')), cache

  def make_sinks(self):
    """The learned sink logit of every head; None without sinks."""
    if not self.sinks:
      return None
    return self.param('sinks', with_logical_axes(zeros, ('heads',)), (self.heads,), jnp.float32)

  def make_projection(self, letter):
    """The linear layer of queries ('q'), keys ('k') or values ('v')."""
    axis, heads = ('heads', self.heads) if letter == 'q' else ('kv_heads', self.kv_heads)
    width = self.head_value_width if letter == 'v' else self.head_width
    scales_init = letter == 'q' and self.query_init_scale != 1
    initializer = (
      scale_initializer(self.initializer, self.query_init_scale) if scales_init else self.initializer
    )
    return Linear(
      (self.width, heads, width),
      ('embed', axis, 'kv'),
      initializer,
      bias=self.has_bias(letter),
      dtype=self.dtype,
      name=letter,
    )

  def project(self, projection, x):
    """Applies a projection, and `qk_norm` to queries and keys."""
    y = projection(x)
    if self.qk_norm and projection.name != 'v':
      y = norm_factory(self.qk_norm, self.bias, 'kv')(name=f'{projection.name}_norm')(y)
    return shard(y, 'batch', 'length', projection.axes[1], 'kv')

  def has_bias(self, letter):
    """Whether the projection of a letter has a bias."""
    return self.bias if self.biases is None else letter in self.biases
