"""Softmax over the visible keys, with the options of published models; for mixers that build on it."""

import math

import jax.numpy as jnp

from tfm.layers.initializer import scale_initializer, zeros
from tfm.mixers._attention import Attention
from tfm.norms.protocol import norm_factory
from tfm.parallel.sharding import with_logical_axes
from tfm.spec import NonNegativeFloat, PositiveFloat, SizeOrZero


class SoftmaxAttention(Attention):
  """softmax(score(q, k) + bias) · v over the keys that the mask shows, with the options of published models.

  Attributes:
    position, score, mask, kernel: as in `Attention`.
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
    qkv_init_scale: factor on the initial projections to queries, keys and values: fairseq's is 1/√2, with
      xavier_uniform (Ott et al. 2019, released code).
    biases: the projections with a bias, letters of 'qkvo': 'qkv' in Qwen2 (Yang et al. 2024, §2.2.1), ''
      (none) in GPT-J; None: all or none, by `bias`, which also decides the bias of the norms.

  Raises (from `validate`):
    ValueError: for an unknown norm or normalizer, sinks with 'sigmoid', or letters in `biases` that name no
      projection.
  """

  soft_cap: NonNegativeFloat = 0.0
  qk_norm: str = ''
  sinks: bool = False
  normalizer: str = 'softmax'
  value_width: SizeOrZero = 0
  query_init_scale: PositiveFloat = 1.0
  qkv_init_scale: PositiveFloat = 1.0
  biases: str | None = None

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

  @property
  def supports_trees(self):
    # What travels with the keys besides may sum up the tokens of the cache, whoever's past they are.
    plain = type(self).compute_features is Attention.compute_features
    plain = plain and type(self).update_cache is Attention.update_cache
    return plain and self.kernel.supports_trees and self.position.func.has_blockwise_bias

  @property
  def head_value_width(self):
    return self.value_width or self.head_width

  def attend(self, queries, keys, inputs):
    settings = dict(
      sinks=self.make_sinks(),
      normalizer=self.normalizer,
      sigmoid_offset=-math.log(self.position(parent=None).length),
      soft_cap=self.soft_cap,
    )
    return super().attend(queries, keys, inputs | settings)

  def make_sinks(self):
    """The learned sink logit of every head; None without sinks."""
    if not self.sinks:
      return None
    return self.param('sinks', with_logical_axes(zeros, ('heads',)), (self.heads,), jnp.float32)

  def normalize_heads(self, y, letter):
    if self.qk_norm and letter in 'qk':
      return norm_factory(self.qk_norm, self.bias, 'kv')(name=f'{letter}_norm')(y)
    return y

  def projection_initializer(self, letter):
    scale = (self.qkv_init_scale if letter in 'qkv' else 1) * (self.query_init_scale if letter == 'q' else 1)
    return scale_initializer(super().projection_initializer(letter), scale)

  def has_bias(self, letter):
    return self.bias if self.biases is None else letter in self.biases
