"""The Vision Transformer: an encoder of patches."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.layers.initializer import Factory, zeros
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context
from tfm.models.trunk import Trunk
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class Vision(Trunk):
  """image → patches, p × p pixels each, projected [behind learned tokens] → trunk → logits of classes
  (Dosovitskiy et al. 2021, §3.1, eq. 1–4; with a second token for distillation, Touvron et al. 2021, DeiT,
  §4).

  Attributes:
    shape: H, W, Q of an image, pixels and channels.
    patch: p, which divides H and W; tokens are the patches row by row.
    class_tokens: number of learned tokens before the patches.
    heads: (name, factory of `Pooled`) of each classification head.
    initializer: of the projection.
    patch_bias: whether the projection has a bias.
  """

  shape: tuple[int, int, int]
  patch: int
  class_tokens: int
  heads: tuple[tuple[str, Callable], ...]
  initializer: Factory
  patch_bias: bool = True

  def setup(self):
    super().setup()
    pixels = self.patch * self.patch * self.shape[2]
    self.patches = Linear(
      (pixels, self.width), ('pixels', 'embed'), self.initializer, bias=self.patch_bias, dtype=self.dtype
    )
    if self.class_tokens:
      self.first = Embedding(
        self.class_tokens,
        self.width,
        Factory(lambda inputs, outputs: zeros),
        self.dtype,
        axis='table',
        name='class_token',
      )
    self.classifiers = {name: head(name=name) for name, head in self.heads}

  def __call__(self, images: Float[Array, 'B H W Q'], context: Context) -> tuple[dict[str, Array], None]:
    """Logits of each head by name; no caches."""
    x = self.features(images, context)
    return {name: self.classify(name, x, context) for name, _ in self.heads}, None

  def features(self, images: Float[Array, 'B H W Q'], context: Context) -> Float[Array, 'B T D']:
    """The last hidden states."""
    x = shard(self.patches(extract_patches(images, self.patch)), 'batch', 'length', 'embed')
    if self.class_tokens:
      which = jnp.broadcast_to(jnp.arange(self.class_tokens), (images.shape[0], self.class_tokens))
      x = jnp.concatenate([self.first(which), x], 1)
    return self.run(x, None, context, None)[0]

  def classify(self, name: str, x: Float[Array, 'B T D'], context: Context) -> Float[Array, '...']:
    """The logits of a head's classes."""
    return self.classifiers[name](x, context.segments > 0, context.train)

  @nn.nowrap
  def example(self, batch: int, length: int) -> tuple[Any, ...]:
    """Arguments that the model can be traced on: `batch` images, whose number of tokens is fixed."""
    return self.arguments(jnp.zeros((batch, *self.shape), jnp.float32))

  @nn.nowrap
  def arguments(self, images: Float[Array, 'B H W Q'], train: bool = False) -> tuple[Any, ...]:
    """As `Decoder.arguments`, for images."""
    B, H, W, _ = images.shape
    tokens = jnp.zeros((B, (H // self.patch) * (W // self.patch) + self.class_tokens), jnp.int32)
    return images, Context.contiguous(tokens, train)


def extract_patches(images: Float[Array, 'B H W Q'], patch: int) -> Float[Array, 'B T N']:
  """The pixels of each patch; patches and pixels are in row order."""
  B, H, W, Q = images.shape
  x = images.reshape(B, H // patch, patch, W // patch, patch, Q).swapaxes(2, 3)
  return x.reshape(B, (H // patch) * (W // patch), patch * patch * Q)
