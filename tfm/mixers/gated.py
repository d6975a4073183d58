"""Gated attention: each channel of a head of softmax attention passes a sigmoid gate of the layer's input."""

import flax.linen as nn

from tfm.mixers._softmax_attention import SoftmaxAttention


class Gated(SoftmaxAttention):
  """W_O (σ(W_gate x) ⊙ heads), where heads are those of softmax attention (Qiu et al. 2025, "Gated attention
  for large language models": a sigmoid gate of each head, after the attention; here of each channel).

  So a head can add nothing to a token without a sink to attend to. Qwen3-Next has it, with
  `qk_norm='rmsnorm'`. x is the layer's input, in cross-attention too; W_gate is [D H C], with a bias where
  queries have one.

  Attributes: those of `SoftmaxAttention`.
  """

  examples = ('gated',)

  def finish_heads(self, y, x):
    return y * nn.sigmoid(self.project(self.make_projection('gate'), x))

  def has_bias(self, letter):
    return super().has_bias('q' if letter == 'gate' else letter)
