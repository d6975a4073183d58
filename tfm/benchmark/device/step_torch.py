"""The training step of `step` by PyTorch: a LLaMA with the same shapes, AdamW, bfloat16 products."""

import time
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from tfm.benchmark.device.attention_torch import DEVICE, make_flex, make_sdpa, wait
from tfm.benchmark.timing import seconds_per_call


# LLaMA 3.2 of 1B.
FIELDS = dict(layers=16, width=2048, heads=32, kv_heads=8, feed_forward_width=8192)


class Layer(nn.Module):
  """Normed attention with rotary positions and grouped heads, and a normed SwiGLU."""

  def __init__(self, attend, width, heads, kv_heads, feed_forward_width):
    super().__init__()
    self.attend, self.heads, self.kv_heads, self.channels = attend, heads, kv_heads, width // heads
    self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
    self.k, self.v = (nn.Linear(width, kv_heads * self.channels, bias=False) for _ in range(2))
    self.gate, self.up = (nn.Linear(width, feed_forward_width, bias=False) for _ in range(2))
    self.down = nn.Linear(feed_forward_width, width, bias=False)
    self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))

  def forward(self, x, turns):
    B, T, D = x.shape
    y = self.norms[0](x)
    q, k, v = (
      project(y).view(B, T, count, self.channels).transpose(1, 2)
      for project, count in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
    )
    mixed = self.attend(rotate(q, turns), rotate(k, turns), v)
    x = x + self.out(mixed.transpose(1, 2).reshape(B, T, D))
    y = self.norms[1](x)
    return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
  """Embedding, layers, norm, and the embedding again as the output."""

  def __init__(self, vocab, length, attend, layers, width, heads, **rest):
    super().__init__()
    self.embedding = nn.Embedding(vocab, width)
    self.layers = nn.ModuleList(Layer(attend, width, heads, **rest) for _ in range(layers))
    self.norm = nn.RMSNorm(width, eps=1e-5)
    half = torch.arange(0, width // heads, 2) * (heads / width)
    angles = torch.arange(length)[:, None] * 500_000.0**-half
    self.register_buffer('turns', torch.stack([angles.cos(), angles.sin()]), persistent=False)

  def forward(self, inputs, targets):
    x = self.embedding(inputs)
    for layer in self.layers:
      x = layer(x, self.turns)
    logits = F.linear(self.norm(x), self.embedding.weight)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def rotate(x, turns):
  """Rotary positions, by halves."""
  a, b = x.float().chunk(2, dim=-1)
  cosine, sine = turns
  return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1).to(x.dtype)


def measure(
  length: int, rows: int, vocab: int, model: Mapping[str, int], attention: str, compiled: bool
) -> dict[str, float]:
  """Tokens/s, memory, and the time of the first step, in which PyTorch compiles."""
  torch.manual_seed(0)
  fields = FIELDS | dict(model)
  attend = {'flex': make_flex, 'sdpa': make_sdpa}[attention]('causal', length, fields['heads'], None)
  net = Llama(vocab, length, attend, **fields).to(DEVICE)
  run_net = torch.compile(net) if compiled else net
  optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=DEVICE == 'cuda')
  tokens = torch.randint(vocab, (rows, length + 1), device=DEVICE)

  def step():
    with torch.autocast(DEVICE, torch.bfloat16):
      loss = run_net(tokens[:, :-1], tokens[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()

  start = time.perf_counter()
  step()
  wait()
  first = time.perf_counter() - start
  seconds = seconds_per_call(step, wait, seconds=5.0)
  found = dict(tokens_per_second=rows * length / seconds, ms=1000 * seconds, compile_seconds=first)
  if DEVICE == 'cuda':
    found |= dict(gib=torch.cuda.max_memory_allocated() / 2**30)
  return found
