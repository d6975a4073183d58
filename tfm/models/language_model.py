"""Language models: a token embedding before the trunk and an output layer over the vocabulary after it."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.layers.head_transform import Transform
from tfm.layers.initializer import Factory, zeros
from tfm.layers.learned_scale import LearnedScale
from tfm.layers.linear import Linear
from tfm.models.trunk import Trunk
from tfm.parallel.sharding import Parameter, shard, with_logical_axes
from tfm.shapes import Array, Float, PyTree


class LanguageModel(Trunk):
  """tokens → embedding → trunk → [transform] → [scaled] [capped] logits over the vocabulary.

  Attributes:
    vocab: V, the number of tokens; rows: of the embedding table, V rounded up.
    embedding_width: of the table, D or a width that is projected to D; embedding_scale: of the embedded
      tokens; see `Embedding`.
    tie_embeddings: whether the output layer is the transposed embedding table.
    output_scale: factor on the input of the output layer, 1/m for a tied table under muP.
    output_transform: activation of a layer before the output; '': no such layer.
    output_bias: whether each token of the output has a bias.
    scales_output: whether the logit of each token has a learned factor.
    output_soft_cap: logits become cap · tanh(logits / cap) (Gemma Team 2024, Gemma 2, §2); 0: no cap.
    embedding_initializer, initializer: of the table, of other projections.
  """

  vocab: int
  rows: int
  embedding_width: int
  embedding_scale: float
  tie_embeddings: bool
  output_scale: float
  output_transform: str
  output_bias: bool
  output_soft_cap: float
  embedding_initializer: Factory
  initializer: Factory
  scales_output: bool = dataclasses.field(default=False, kw_only=True)

  def setup(self):
    super().setup()
    self.embedding = self.vocabulary(self.rows)
    if not self.tie_embeddings:
      self.output = Linear(
        (self.width, self.rows),
        ('embed', 'vocab'),
        self.initializer,
        bias=False,
        dtype=self.dtype,
        output_dtype=jnp.float32,
      )
    if self.output_transform:
      self.transform = Transform(self.output_transform, self.width, self.norm, self.initializer, self.dtype)
    if self.output_bias:
      self.bias = Bias(self.rows)
    if self.scales_output:
      self.output_scales = LearnedScale(self.rows, 'vocab')

  @nn.nowrap
  def vocabulary(self, rows: int) -> Embedding:
    """The embedding of a vocabulary; called in `setup`."""
    return Embedding(
      rows,
      self.width,
      self.embedding_initializer,
      self.dtype,
      self.embedding_scale,
      table_width=self.embedding_width,
      projection=self.initializer,
    )

  def logits(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T V']:
    """Float32 logits over the whole vocabulary."""
    if self.output_transform:
      x = self.transform(x)
    x = x if self.output_scale == 1 else self.output_scale * x
    y = self.embedding.attend(x) if self.tie_embeddings else self.output(x)
    if self.output_bias:
      y = self.bias(y)
    if self.scales_output:
      y = self.output_scales(y)
    if self.output_soft_cap:
      y = self.output_soft_cap * jnp.tanh(y / self.output_soft_cap)
    y = shard(y, 'batch', 'length', 'vocab')
    # Rows beyond the vocabulary only pad the table for the mesh.
    return y[..., : self.vocab]

  @nn.nowrap
  def head(self, params: PyTree) -> PyTree:
    """The part of the parameters that `logits` reads."""
    is_used = {
      'embedding': self.tie_embeddings,
      'output': not self.tie_embeddings,
      'transform': self.output_transform,
      'bias': self.output_bias,
      'output_scales': self.scales_output,
    }
    return {name: params[name] for name, used in is_used.items() if used}

  @nn.nowrap
  def head_axes(self, head: PyTree, features: Float[Array, 'B T D']) -> PyTree | None:
    """The logical axes of each parameter of `head`; None if it has other parameters,
    such as adapters.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    with nn.logical_axis_rules(()):
      boxed = jax.eval_shape(functools.partial(self.init, method='logits'), key, features)['params']
    names = jax.tree.map(lambda box: box.names, boxed, is_leaf=lambda x: isinstance(x, Parameter))
    alike = jax.tree.structure(head) == jax.tree.structure(names, is_leaf=lambda x: isinstance(x, tuple))
    return names if alike else None


class Bias(nn.Module):
  """x + b, b starting from zeros."""

  rows: int

  @nn.compact
  def __call__(self, x: Float[Array, 'B T V']) -> Float[Array, 'B T V']:
    return (
      x + self.param('bias', with_logical_axes(zeros, ('vocab',)), (self.rows,), jnp.float32)[None, None, :]
    )
