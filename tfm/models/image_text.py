"""The image-text model: an image encoder and a text encoder that embed into one space, as in CLIP."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.layers.initializer import constant
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context
from tfm.models.language_model import LanguageModel
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Float, Int


INITIAL_SCALE, MAX_SCALE = 1 / 0.07, 100.0  # of the logits


class ImageText(LanguageModel):
  """(images, texts) → logits of every image with every text, the scaled cosines of their embeddings
  (Radford et al. 2021, CLIP, §2.3–2.5 and figure 3).

    e_image = x_0 W_image / |x_0 W_image|       x of the image encoder, at its class token
    e_text = x_end W_text / |x_end W_text|      x of the text trunk, at the end of the text
    logits_ij = exp(s) · e_image_i · e_text_j   s is learned, from ln(1 / 0.07); see `clipped_scale`

  It is a language model without its logits over the vocabulary; the space of the embeddings has its width.

  Attributes:
    encoder: factory of a `Vision` without heads, which may have another width.
    image_width: of the encoder.
  """

  encoder: Callable
  image_width: int

  def setup(self):
    super().setup()
    self.encoding = self.encoder(name='encoder')

    def projection(inputs):
      # The embedding is never sharded, as the classes of a head are not.
      return Linear(
        (inputs, self.width), ('embed', 'classes'), self.initializer, bias=False, dtype=self.dtype
      )

    self.image_projection, self.text_projection = projection(self.image_width), projection(self.width)
    self.logit_scale = self.param(
      'logit_scale', with_logical_axes(constant(np.log(INITIAL_SCALE)), ()), (), jnp.float32
    )

  def __call__(
    self, images: Float[Array, 'B H W Q'], tokens: Int[Array, 'N T'], context: Context
  ) -> tuple[Float[Array, 'B N'], None]:
    """The logits of every image (rows) with every text (columns); no caches."""
    images, texts = self.embed_images(images, context.train), self.embed_texts(tokens, context)
    return jnp.exp(self.logit_scale) * jnp.einsum('ie,je->ij', images, texts), None

  def embed_images(self, images: Float[Array, 'B H W Q'], train: bool) -> Float[Array, 'B E']:
    """The embedding of each image, of length 1, float32."""
    x = self.encoding.features(*self.encoding.arguments(images, train))
    return normalize(self.image_projection(x[:, 0]))

  def embed_texts(self, tokens: Int[Array, 'B T'], context: Context) -> Float[Array, 'B E']:
    """The embedding of each text, of length 1, float32: that of its last token, which is the last that is no
    padding. Of a row of padding it has no meaning.
    """
    x = self.run(self.embedding(tokens), None, context, None)[0]
    end = jnp.where(context.segments > 0, jnp.arange(tokens.shape[1])[None], 0).max(1)
    return normalize(self.text_projection(jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0]))

  def clipped_scale(self) -> Float[Array, '']:
    """exp(s) for a loss: at most `MAX_SCALE` (§2.5)."""
    return jnp.exp(clip_above(self.logit_scale, np.float32(np.log(MAX_SCALE))))

  @nn.nowrap
  def arguments(
    self, images: Float[Array, 'B H W Q'], tokens: Int[Array, 'N T'], train: bool = False
  ) -> tuple[Any, ...]:
    """As `Decoder.arguments`, for images and texts."""
    return images, tokens, Context.contiguous(tokens, train)

  @nn.nowrap
  def example(self, batch: int, length: int) -> tuple[Any, ...]:
    """Arguments that the model can be traced on: `batch` images, and as many texts of `length` tokens."""
    images = jnp.zeros((batch, *self.encoder.keywords['shape']), jnp.float32)
    return self.arguments(images, jnp.zeros((batch, length), jnp.int32))


def normalize(x: Float[Array, 'B E']) -> Float[Array, 'B E']:
  """x / |x| in float32."""
  x = shard(x, 'batch', None).astype(jnp.float32)
  return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))


@jax.custom_vjp
def clip_above(x: Float[Array, ''], most: Float[Array, '']) -> Float[Array, '']:
  """min(x, most). Beyond `most` the gradient is that of x where a step against it lowers x, and 0 where it
  would raise x: so x can return, as if it were itself clipped after each update.
  """
  return jnp.minimum(x, most)


def _clip_forward(x, most):
  return clip_above(x, most), x < most


def _clip_backward(is_below, gradient):
  return jnp.where(is_below, gradient, jnp.maximum(gradient, 0)), None


clip_above.defvjp(_clip_forward, _clip_backward)
