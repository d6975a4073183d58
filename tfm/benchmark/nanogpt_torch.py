"""The training step of `gpt2` with a GPT-2 shaped like nanoGPT's in PyTorch, measured in this process.

python -m tfm.benchmark.nanogpt_torch training 12 compiled=1     → {"tokens_per_second": …, …}

What nanoGPT has of GPT-2 (Radford et al. 2019): learned positions, layers with norms before their branches,
one product for queries, keys and values, scaled_dot_product_attention, an exact GELU, and the embedding again
as the output; matrices alone have weight decay. AdamW is fused, which nanoGPT has on GPUs only.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tfm.benchmark.gpt2 import SHAPE, TRAINING_SECONDS, print_measurement
from tfm.benchmark.timing import seconds_per_call


class Layer(nn.Module):
  """Causal attention and a feed-forward layer, each after a norm and beside a residual."""

  def __init__(self, width: int, heads: int):
    super().__init__()
    self.heads = heads
    self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
    self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

  def forward(self, x):
    qkv = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
    q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + self.out(mixed.transpose(1, 2).flatten(2))
    return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
  """Embeddings of tokens and positions, layers, a norm, and the embedding of tokens again."""

  def __init__(self, layers: int, width: int, heads: int, length: int, vocab: int):
    super().__init__()
    self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
    self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
    self.norm = nn.LayerNorm(width)
    for name, x in self.named_parameters():
      if x.ndim == 2:
        # The last product of each of the 2 · layers branches is drawn smaller by their square root.
        last = name.endswith(('out.weight', 'down.weight'))
        nn.init.normal_(x, std=0.02 * ((2 * layers) ** -0.5 if last else 1))
      elif name.endswith('bias'):
        nn.init.zeros_(x)

  def forward(self, inputs):
    x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
    return F.linear(self.norm(self.layers(x)), self.tokens.weight)


def measure_training(rows: int, compiled: int = 0, **shape: int) -> float:
  """Tokens per second of whole training steps: forward, backward, clipping, AdamW.

  Args:
    compiled: 1 for torch.compile; shape: numbers other than those of `SHAPE`.
  """
  torch.manual_seed(0)
  shape = SHAPE | shape
  tokens = torch.randint(shape['vocab'], (rows, shape['length'] + 1))
  step = make_step(GPT(**shape), tokens, compiled)
  return rows * shape['length'] / seconds_per_call(step, lambda _: None, seconds=TRAINING_SECONDS)


def make_step(model: GPT, tokens: torch.Tensor, compiled: int) -> Callable[[], float]:
  """A function that trains the model once on these rows, and returns the loss before."""
  run = torch.compile(model) if compiled else model
  decayed, others = (
    [x for x in model.parameters() if (x.ndim > 1) == is_matrix] for is_matrix in (True, False)
  )
  groups = [dict(params=decayed, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
  optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)

  def step():
    loss = F.cross_entropy(run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()

  return step


if __name__ == '__main__':
  print_measurement(dict(training=measure_training))
