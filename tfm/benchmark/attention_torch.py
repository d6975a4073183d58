"""What `attention` measures of kernels, with PyTorch's `scaled_dot_product_attention`.

  python -m tfm.benchmark.attention_torch window 4096

What is neither causal nor dense goes in as a mask or bias of length × length, as PyTorch wants it. It
has no soft cap, and a T5 bias gets its gradient through that matrix.
"""

import sys

from tfm.benchmark import process
from tfm.benchmark.attention import SHAPE


VARIANTS = ('causal', 'window', 'alibi', 't5', 'documents')


def main() -> None:
  """Measures what the command line names."""
  variant, length = sys.argv[1], int(sys.argv[2])
  process.limit_memory()
  import torch
  from torch.nn.functional import scaled_dot_product_attention

  torch.manual_seed(0)
  B, H, C = SHAPE['batch'], SHAPE['heads'], SHAPE['head_width']
  qkv = [torch.randn(B, H, length, C, requires_grad=True) for _ in range(3)]
  at = torch.arange(length)
  table = torch.randn(32, H, requires_grad=True)

  def mask():
    """The mask or bias, made anew for each pass where it is learned."""
    distance = at[:, None] - at[None, :]
    if variant == 'causal':
      return dict(is_causal=True)
    if variant == 'window':
      return dict(attn_mask=(distance >= 0) & (distance <= 256))
    if variant == 'documents':
      return dict(attn_mask=(distance >= 0) & (at[:, None] // 512 == at[None, :] // 512))
    if variant == 'alibi':
      slopes = 2.0 ** -torch.arange(1, H + 1)
      bias = -slopes[:, None, None] * distance
    else:
      bias = table[distance.clamp(0, 31)].movedim(-1, 0)
    return dict(attn_mask=bias.masked_fill(distance < 0, float('-inf'))[None])

  fixed = None if variant == 't5' else mask()

  def run():
    return scaled_dot_product_attention(*qkv, **fixed or mask())

  def forward():
    with torch.no_grad():
      run()

  def both():
    for x in (*qkv, table):
      x.grad = None
    (run() ** 2).sum().backward()

  process.report(forward, lambda: both)


if __name__ == '__main__':
  main()
