"""The gated short convolution of LFM2: a causal convolution over a few tokens between two gates."""

import flax.linen as nn

from tfm.layers.causal_convolution import CausalConvolution, Window
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard
from tfm.spec import Size


class ShortConvolution(Mixer):
  """W_out (C ⊙ convolution(B ⊙ h)) with B, C, h = projections of x (Liquid AI 2025, LFM2, released code).

  The convolution is depthwise and causal; its taps count tokens of the document: padding is skipped, and
  before its first token a document reads zeros. Its cache does not grow with the length. The model's heads,
  kv_heads and head_width describe attention: there are no heads here.

  Attributes:
    taps: of the convolution, in tokens, the token itself among them.

  Raises (from `validate`):
    ValueError: for dropout, as there are no mixing weights to drop.
  """

  taps: Size = 3

  supported_masks = ('causal',)
  supports_grouped_heads = False

  def validate(self):
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which a convolution does not '
        'have; use 0, or dropout.residual'
      )

  @nn.nowrap
  def init_cache(self, batch, length):
    return Window.empty((batch, self.taps - 1, self.width), ('mlp',), self.dtype)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)

    def project(name, axes, initializer, x):
      shape = (self.width, self.width)
      return Linear(shape, axes, initializer, bias=self.bias, dtype=self.dtype, name=name)(x)

    before, h, after = (
      shard(project(name, ('embed', 'mlp'), self.initializer, x), 'batch', 'length', 'mlp')
      for name in ('gate_before', 'value', 'gate_after')
    )
    convolution = CausalConvolution(
      (self.width,), ('mlp',), self.taps, bias=self.bias, dtype=self.dtype, name='convolution'
    )
    unbroken = cache is None and context.layout != 'arbitrary'
    h, cache = convolution(before * h, context.segments, cache, unbroken)
    y = project('out', ('mlp', 'embed'), self.output_initializer, after * h)
    return shard(y, 'batch', 'length', 'embed'), cache
