"""The recurrences of flash-linear-attention (fla) in layers like ours, with projections and convolutions."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from tfm.benchmark.device.attention_torch import DEVICE, time_passes


TAPS, STATE, EXPAND = 4, 64, 2  # of our mixers, by default


class Convolved(nn.Module):
  """A projection, a causal convolution of each channel, and SiLU; B T D → B T H C."""

  def __init__(self, width, heads, channels, bias=False):
    super().__init__()
    self.shape, features = (heads, channels), heads * channels
    self.project = nn.Linear(width, features, bias=False)
    self.convolution = nn.Conv1d(features, features, TAPS, groups=features, padding=TAPS - 1, bias=bias)

  def forward(self, x):
    y = self.convolution(self.project(x).transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
    return F.silu(y).unflatten(-1, self.shape)


class Rate(nn.Module):
  """log α = -exp(A_log) softplus(W x + dt_bias), and the softplus, in float32; B T D → B T H."""

  def __init__(self, width, heads):
    super().__init__()
    self.project = nn.Linear(width, heads, bias=False)
    self.dt_bias, self.A_log = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.zeros(heads))

  def forward(self, x):
    delta = F.softplus(self.project(x).float() + self.dt_bias.float())
    return -self.A_log.float().exp() * delta, delta


class Linear(nn.Module):
  """Linear attention, φ(x) = elu(x) + 1."""

  def __init__(self, recurrence, width, heads):
    super().__init__()
    self.recurrence, self.heads = recurrence, heads
    self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

  def forward(self, x):
    q, k, v = (project(x).unflatten(-1, (self.heads, -1)) for project in (self.q, self.k, self.v))
    y, _ = self.recurrence(F.elu(q) + 1, F.elu(k) + 1, v, normalize=True)
    return self.out(y.flatten(2))


class GatedDelta(nn.Module):
  """The gated delta rule, with a gated norm."""

  def __init__(self, recurrence, width, heads):
    super().__init__()
    self.recurrence, channels = recurrence, width // heads
    self.q, self.k, self.v = (Convolved(width, heads, channels) for _ in range(3))
    self.rate, self.beta = Rate(width, heads), nn.Linear(width, heads, bias=False)
    self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
    self.norm = nn.RMSNorm(channels, eps=1e-6)

  def forward(self, x):
    q, k = (F.normalize(each(x), dim=-1) for each in (self.q, self.k))
    g, beta = self.rate(x)[0], self.beta(x).float().sigmoid()
    y, _ = self.recurrence(q, k, self.v(x), g, beta)
    return self.out(self.norm(y).flatten(2) * F.silu(self.gate(x)))


class Mamba2(nn.Module):
  """Mamba-2: a head of C and B for two of x, a skip, and a norm of what is gated, over both."""

  def __init__(self, recurrence, width, heads):
    super().__init__()
    self.recurrence, heads, channels = recurrence, EXPAND * heads, width // heads
    self.x = Convolved(width, heads, channels, bias=True)
    self.b, self.c = (Convolved(width, heads // EXPAND, STATE, bias=True) for _ in range(2))
    self.rate, self.skip = Rate(width, heads), nn.Parameter(torch.ones(heads))
    self.gate = nn.Linear(width, EXPAND * width, bias=False)
    self.scale, self.out = (
      nn.Parameter(torch.ones(EXPAND * width)),
      nn.Linear(EXPAND * width, width, bias=False),
    )

  def forward(self, x):
    values, (g, delta) = self.x(x), self.rate(x)
    b, c = (each(x).repeat_interleave(EXPAND, 2) for each in (self.b, self.c))
    y, _ = self.recurrence(c, b, values * delta[..., None].to(values.dtype), g, scale=1.0)
    y = (y + self.skip[:, None] * values).flatten(2) * F.silu(self.gate(x))
    groups = y.unflatten(-1, (b.shape[2] // EXPAND, -1))
    return self.out(F.rms_norm(groups, groups.shape[-1:], eps=1e-5).flatten(2) * self.scale)


def load_recurrence(name: str) -> Callable:
  """The function of fla; it imports Triton, which needs a GPU."""
  if name == 'linear':
    from fla.ops.linear_attn import chunk_linear_attn as recurrence
  elif name == 'gated_delta':
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as recurrence
  else:
    from fla.ops.simple_gla import chunk_simple_gla as recurrence
  return recurrence


LAYERS = {'linear': Linear, 'gated_delta': GatedDelta, 'mamba2': Mamba2}


def mixer(
  fields: Mapping[str, str], length: int, batch: int, heads: int, head_width: int
) -> dict[str, float]:
  """Milliseconds of a layer, its projections included."""
  torch.manual_seed(0)
  name, width = fields['mixer'], heads * head_width
  layer = LAYERS[name](load_recurrence(name), width, heads).to(DEVICE, torch.bfloat16)
  x = torch.randn(batch, length, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
  return time_passes(lambda: layer(x), (x, *layer.parameters()))
