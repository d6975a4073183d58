"""DeepNorm: the residual stream is multiplied before each addition, and initial branches are small."""

import dataclasses

from tfm.residuals.protocol import Residual


@dataclasses.dataclass(frozen=True)
class DeepNorm(Residual):
  """norm(α x + f(x)), with β times the initial projections to values, hidden layers and the residual stream
  (Wang et al. 2022, "DeepNet: scaling Transformers to 1,000 layers").

  Of N layers of an encoder and M of a decoder:

    an encoder or a decoder alone   α = (2 N)^(1/4)            β = (8 N)^(-1/4)
    the encoder of both             α = 0.81 (N⁴ M)^(1/16)     β = 0.87 (N⁴ M)^(-1/16)
    the decoder of both             α = (3 M)^(1/4)            β = (12 M)^(-1/4)

  The paper's initial values are those of `xavier_normal`. config.model.depth_scaled=False leaves out β.
  """

  placements = ('post',)

  @property
  def scales(self):
    """α and β."""
    encoder, decoder, in_encoder = self.depth
    if encoder and decoder and in_encoder:
      root = (encoder**4 * decoder) ** (1 / 16)
      return 0.81 * root, 0.87 / root
    if encoder and decoder:
      return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25
    layers = encoder or decoder
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25

  def initial_scales(self, branches):
    _, beta = self.scales
    return beta, beta

  def __call__(self, block, branches, x, context):
    alpha, _ = self.scales
    for name, f in branches.items():
      x = block.norm(name=f'{name}_norm')(alpha * x + block.branch(name, f, x, context))
    return x
