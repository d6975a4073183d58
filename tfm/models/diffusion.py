"""The diffusion transformer: an encoder of noisy patches that knows the time and the class."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.layers.initializer import Factory, normal, zeros
from tfm.layers.linear import Linear
from tfm.layers.modulation import Modulation, modulate
from tfm.layers.rotary import frequencies
from tfm.mixers.protocol import Context
from tfm.models.trunk import Trunk
from tfm.models.vision import extract_patches
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int


TIME_CHANNELS, LONGEST = 256, 10_000  # sines and cosines of the time, and the base of their wavelengths


class Diffusion(Trunk):
  """noisy image, time, class → what the objective predicts of each pixel (Peebles & Xie 2023, DiT, §3.2):

    condition c = W₂ silu(W₁ waves(time)) + E[class]
    image → patches, p × p pixels each, projected → trunk on c → projection of (1 + scale) ⊙ x + shift → image

  with [shift, scale] = W silu(c) + b. W, b and the last projection start from zeros.

  Attributes:
    shape: H, W, Q of an image, pixels and channels.
    patch: p, which divides H and W; tokens are the patches row by row.
    classes: number of classes; class `classes` stands for none.
    outputs: numbers that are predicted per channel of a pixel, one after another in the last axis.
    initializer: of the projection of patches.
  """

  shape: tuple[int, int, int]
  patch: int
  classes: int
  outputs: int
  initializer: Factory

  def setup(self):
    super().setup()
    D, pixels, channels = self.width, self.patch * self.patch, self.shape[2]
    self.patches = Linear((pixels * channels, D), ('pixels', 'embed'), self.initializer, dtype=self.dtype)
    # The released code draws these from N(0, 0.02²), whatever initializes the other projections.
    self.time_in = Linear((TIME_CHANNELS, D), ('rank', 'mlp'), normal(), dtype=self.dtype)
    self.time_out = Linear((D, D), ('mlp', 'embed'), normal(), dtype=self.dtype)
    self.class_table = Embedding(self.classes + 1, D, normal(), self.dtype, axis='table')
    self.modulation = Modulation(2, self.dtype)
    self.output = Linear(
      (D, pixels * channels * self.outputs),
      ('embed', 'pixels'),
      Factory(lambda inputs, outputs: zeros),
      dtype=self.dtype,
      output_dtype=jnp.float32,
    )

  def __call__(
    self,
    images: Float[Array, 'B H W Q'],
    times: Float[Array, 'B'],
    classes: Int[Array, 'B'],
    context: Context,
  ) -> tuple[Float[Array, 'B H W N'], None]:
    """What is predicted of noisy images, N = Q · outputs, in float32; no caches.

    Args:
      times: between 0 (data) and about 1000 (noise).
      classes: `self.classes` for none.
    """
    time = self.time_out(nn.silu(self.time_in(make_waves(times))))
    condition = time + self.class_table(classes[:, None])[:, 0]
    x = shard(self.patches(extract_patches(images, self.patch)), 'batch', 'length', 'embed')
    x, _ = self.run(x, None, context.replace(condition=condition), None)
    shift, scale = self.modulation(condition)
    return join_patches(self.output(modulate(x, shift, scale)), self.patch, images.shape[1:3]), None

  @nn.nowrap
  def example(self, batch: int, length: int) -> tuple[Any, ...]:
    """Arguments that the model can be traced on: `batch` images, whose number of tokens is fixed."""
    return self.arguments(
      jnp.zeros((batch, *self.shape), jnp.float32), jnp.zeros(batch, jnp.float32), jnp.zeros(batch, jnp.int32)
    )

  @nn.nowrap
  def arguments(
    self,
    images: Float[Array, 'B H W Q'],
    times: Float[Array, 'B'],
    classes: Int[Array, 'B'],
    train: bool = False,
  ) -> tuple[Any, ...]:
    """As `Decoder.arguments`, for images with their times and classes."""
    B, H, W, _ = images.shape
    tokens = jnp.zeros((B, (H // self.patch) * (W // self.patch)), jnp.int32)
    return images, times, classes, Context.contiguous(tokens, train)


def make_waves(times: Float[Array, 'B']) -> Float[Array, 'B N']:
  """cos(t θᵢ) for all i, then sin(t θᵢ), with θᵢ = 10000^(-2i/N), i < N/2 (the released code of DiT)."""
  angles = times[:, None] * jnp.asarray(frequencies(LONGEST, TIME_CHANNELS), jnp.float32)[None]
  return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)


def join_patches(x: Float[Array, 'B T N'], patch: int, size: tuple[int, int]) -> Float[Array, 'B H W Q']:
  """The image of size H × W whose patches `extract_patches` would return as x."""
  rows, columns = (side // patch for side in size)
  x = x.reshape(len(x), rows, columns, patch, patch, -1).swapaxes(2, 3)
  return x.reshape(len(x), rows * patch, columns * patch, x.shape[-1])
