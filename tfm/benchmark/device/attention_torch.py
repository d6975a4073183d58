"""The same attention by PyTorch: FlexAttention, compiled, and scaled_dot_product_attention."""

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from tfm.benchmark.timing import seconds_per_call


DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
WINDOW, SINKS, DOCUMENT, CAP = 256, 4, 512, 50.0  # as in tfm/benchmark/attention.py


def kernel(
  kernel: str, variant: str, length: int, batch: int, heads: int, head_width: int
) -> dict[str, float]:
  """Milliseconds of forward, and of forward with backward."""
  torch.manual_seed(0)
  q, k, v = (
    torch.randn(batch, heads, length, head_width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3)
  )
  table = torch.randn(32, heads, device=DEVICE, requires_grad=True)
  make = {'flex': make_flex, 'sdpa': make_sdpa}[kernel]
  attend = make(variant, length, heads, table)
  return time_passes(lambda: attend(q, k, v), (q, k, v) + (table,) * (variant == 't5'))


def time_passes(run: Callable, inputs: Sequence[torch.Tensor]) -> dict[str, float]:
  """Milliseconds and memory of the same two passes as those of `tfm.benchmark.device.attention`."""
  with torch.no_grad():
    gradient = torch.randn_like(run())

  def forward():
    with torch.no_grad():
      run()

  def both():
    torch.autograd.grad(run(), inputs, gradient)

  found = {}
  for name, f in (('forward', forward), ('both', both)):
    found |= {f'{name}_ms': 1000 * seconds_per_call(f, wait)}
    if DEVICE == 'cuda':
      found |= {f'{name}_gib': torch.cuda.max_memory_allocated() / 2**30}
  return found


def wait(_=None) -> None:
  """Until the device has done what is queued."""
  if DEVICE == 'cuda':
    torch.cuda.synchronize()


def make_mask(variant: str, length: int) -> Callable:
  """A function (b, h, q, k) → whether a query sees a key, as FlexAttention wants it."""
  return {
    'window': lambda b, h, q, k: (k <= q) & (q - k <= WINDOW),
    'documents': lambda b, h, q, k: (k <= q) & (q // DOCUMENT == k // DOCUMENT),
    'prefix': lambda b, h, q, k: (k <= q) | (k < length // 4),
    'sinks': lambda b, h, q, k: (k <= q) & ((q - k <= WINDOW) | (k < SINKS)),
  }.get(variant, lambda b, h, q, k: k <= q)


def find_buckets(length: int) -> torch.Tensor:
  """T5's bucket of every distance of a decoder: 16 of one distance each, and 16 of those from 16 on."""
  distance = torch.arange(length, device=DEVICE)
  far = 16 + (torch.log(distance.clamp(min=1) / 16) / math.log(128 / 16) * 16).long()
  return torch.where(distance < 16, distance, far.clamp(max=31))


def make_flex(variant: str, length: int, heads: int, table: torch.Tensor, compiled: bool = True) -> Callable:
  """(q, k, v) → output, by FlexAttention."""
  from torch.nn.attention.flex_attention import create_block_mask, flex_attention

  slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=DEVICE) / heads)
  buckets = find_buckets(length)
  scores = {
    'soft cap': lambda score, b, h, q, k: CAP * torch.tanh(score / CAP),
    'alibi': lambda score, b, h, q, k: score - slopes[h] * (q - k),
    't5': lambda score, b, h, q, k: score + table[buckets[(q - k).clamp(min=0)], h],
  }
  mask = create_block_mask(make_mask(variant, length), None, None, length, length, device=DEVICE)
  attend = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
  return lambda q, k, v: attend(q, k, v, score_mod=scores.get(variant), block_mask=mask, enable_gqa=True)


def make_sdpa(variant: str, length: int, heads: int, table: torch.Tensor) -> Callable:
  """(q, k, v) → output; whatever is not plainly causal is a matrix of length × length, of T5's learned bias
  made anew each time.
  """
  if variant == 'causal':
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
  if variant == 'soft cap':
    raise ValueError('scaled_dot_product_attention has no soft cap')
  q, k = (torch.arange(length, device=DEVICE)[shape] for shape in ((slice(None), None), (None, slice(None))))
  mask = make_mask(variant, length)(None, None, q, k)
  if variant not in ('alibi', 't5'):
    return lambda *qkv: scaled_dot_product_attention(*qkv, attn_mask=mask)

  def hide(bias):
    return bias.to(torch.bfloat16).masked_fill(~mask, float('-inf'))

  if variant == 't5':
    return lambda *qkv: scaled_dot_product_attention(
      *qkv, attn_mask=hide(table[find_buckets(length)[(q - k).clamp(min=0)]].movedim(-1, 0))[None]
    )
  slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=DEVICE) / heads)
  bias = torch.stack([hide(-slope * (q - k)) for slope in slopes])[None]  # a head at a time, for its memory
  return lambda *qkv: scaled_dot_product_attention(*qkv, attn_mask=bias)
