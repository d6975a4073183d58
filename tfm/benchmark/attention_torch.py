"""The kernel measurements of `attention`, with PyTorch's `scaled_dot_product_attention`.

  python -m tfm.benchmark.attention_torch window 4096

Variants other than plain causal attention are passed as a length × length mask or bias, the only form that
PyTorch accepts. It has no soft cap; the gradient of a T5 bias flows through that matrix.
"""

import sys

from tfm.benchmark import process
from tfm.benchmark.attention import SHAPE


VARIANTS = ('causal', 'window', 'alibi', 't5', 'documents')


def main() -> None:
  """Measures the variant that the command line names."""
  variant, length = sys.argv[1], int(sys.argv[2])
  process.limit_memory()
  import torch
  from torch.nn.functional import scaled_dot_product_attention

  torch.manual_seed(0)
  B, H, C = SHAPE.batch, SHAPE.heads, SHAPE.head_width
  qkv = [torch.randn(B, H, length, C, requires_grad=True) for _ in range(3)]
  index = torch.arange(length)
  table = torch.randn(32, H, requires_grad=True)

  def make_mask():
    """The mask or bias; a learned one is computed in every pass."""
    distance = index[:, None] - index[None, :]
    if variant == 'causal':
      return dict(is_causal=True)
    if variant == 'window':
      return dict(attn_mask=(distance >= 0) & (distance <= 256))
    if variant == 'documents':
      return dict(attn_mask=(distance >= 0) & (index[:, None] // 512 == index[None, :] // 512))
    if variant == 'alibi':
      slopes = 2.0 ** -torch.arange(1, H + 1)
      bias = -slopes[:, None, None] * distance
    else:
      bias = table[distance.clamp(0, 31)].movedim(-1, 0)
    return dict(attn_mask=bias.masked_fill(distance < 0, float('-inf'))[None])

  constant_mask = None if variant == 't5' else make_mask()

  def run():
    return scaled_dot_product_attention(*qkv, **constant_mask or make_mask())

  def forward():
    with torch.no_grad():
      run()

  def both():
    for x in (*qkv, table):
      x.grad = None
    (run() ** 2).sum().backward()

  process.print_passes(forward, lambda: both)


if __name__ == '__main__':
  main()
