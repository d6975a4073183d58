"""Softmax attention: Position ∘ Score ∘ Mask ∘ Kernel between four projections."""

from tfm.mixers._softmax_attention import SoftmaxAttention


class Softmax(SoftmaxAttention):
  """softmax(score(q, k) + bias) · v over the keys that the mask shows, between projections to q, k, v and one
  of the output (Vaswani et al. 2017, §3.2).

  Multi-head attention is kv_heads = heads, multi-query kv_heads = 1 (Shazeer 2019), grouped-query
  anything between (Ainslie et al. 2023). Self- and cross-attention differ in the source of keys and values.

  Attributes: those of `SoftmaxAttention`.
  """

  examples = (
    'softmax',
    'softmax(soft_cap=5.0, qk_norm="rmsnorm", sinks=True, biases="ko")',
    'softmax(normalizer="sigmoid", value_width=3)',
  )

  @property
  def supports_unit_weights(self):
    return bool(self.qk_norm)
