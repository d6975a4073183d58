"""A mixture of experts: each token goes through a few of many feed-forward layers."""

import math
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from annotated_types import Ge

from tfm.feed_forwards._expert_groups import mix_groups
from tfm.feed_forwards._expert_slots import assign_slots
from tfm.feed_forwards._experts import Experts
from tfm.layers.grouped_matmul import permute
from tfm.layers.initializer import zeros
from tfm.layers.load_balance import BALANCE_BIAS, carry_excess_load
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Bool, Float, Int
from tfm.spec import NonNegativeFloat, Size, SizeOrZero


# Logits → the logarithm of a token's affinity to each expert.
GATES = {'softmax': jax.nn.log_softmax, 'sigmoid': jax.nn.log_sigmoid}


class MixtureOfExperts(Experts):
  """y = Σ_i g_i(x) · expert_i(x) over the k experts with the greatest logits r = x · R, in float32
  (Shazeer et al. 2017, §2; Lepikhin et al. 2020, GShard; Fedus et al. 2022, Switch; Jiang et al. 2024,
  Mixtral).

  g is the softmax over the k logits (Mixtral, §2.1) or, with `normalize` off, the softmax over all E of
  them, of which only k are used (Switch, eq. 2; DeepSeekMoE, eq. 4). There is no noise.

  Without a `capacity` no token is dropped, and each is computed independently of the others. With one, an
  expert takes the first ⌈capacity · k · T / E⌉ tokens of a row at most, the first choices of all tokens
  before any second ones; a choice beyond the capacity is dropped: it adds nothing, and a token without any
  choice passes through the residual stream alone. Padding is not routed. With dropping, the
  output of a token depends on the other tokens of its row: on packed neighbours, and for k > 1 on the first
  choices of later tokens; in decoding, where tokens come one by one, hardly any is dropped. Packing,
  causality and cached decoding therefore hold exactly only while nothing is dropped.

  In training two losses are reported in the collection 'losses', each the mean over the tokens
  times its weight: E Σ_i f_i P_i, f_i being the choices of expert i for each token and P_i its mean
    probability (Switch, eq. 4–6; for k > 1 as in Mixtral's published code, so it is k if all experts are
    chosen equally often), and log²Σ exp r (Zoph et al. 2022, ST-MoE, eq. 5). In 'metrics': 'load', the
    busiest expert's share of the choices over the even share, and 'dropped', the share of dropped choices.

  If `rules.expert` shards the experts over a mesh axis, each device computes its own experts, whose weights
  stay where they are. Over an axis that also shards the batch, as 'expert' does, rows travel: with a capacity
  by all-to-all; without one the number of rows per expert is unknown, so each device gathers the rows of the
  axis, computes the choices of its own experts among them (`_expert_groups`), and the sums are scattered.
  Over another axis, such as 'tensor' with rules.mlp='' (an axis of two rules belongs to the first), each
  device already has the rows.

  Attributes:
    width: D; hidden: F of one expert.
    bias, initializer, output_initializer, dtype: of the experts' projections; the router has no bias.
    experts: E; top_k: how many of them a token goes to.
    activation: of an expert, the name of an MLP of this folder.
    normalize: whether the k weights sum to one.
    scale: of the mixture, beside the shared experts (DeepSeek-AI 2024, DeepSeek-V2, its "routed scaling").
    capacity: of an expert, as a multiple of its even share of a row's choices; None: all that come.
    shared: experts that every token goes to, together one MLP of `shared` · F (Dai et al. 2024,
      DeepSeekMoE, §3.2).
    balance, z_loss: weights of the losses; 0: none.
    balance_bias: whether the k experts are those with the greatest probability + bias, without a bias in
      the weights; each step moves the biases by config.optimizer.balance_rate towards even loads (Wang et
      al. 2024, Auxiliary-Loss-Free Load Balancing, eq. 3 and algorithm 1; `layers/load_balance.py`). In
      place of the balance loss with balance=0, or beside it.
    gate: 'softmax', or 'sigmoid', with which the affinity of a token to one expert does not depend on the
      others (DeepSeek-AI 2024, DeepSeek-V3, eq. 13 to 15): p = sigmoid(r) in place of the softmax over all E.
      The k weights are p, or p over their sum; the balance loss takes P_i from p over its sum over all E.

  Raises:
    ValueError: for fewer than one expert, a top_k outside of 1 … E or that leaves the router without a
      gradient, an unknown activation, a capacity of zero or less, or a negative number otherwise.
  """

  examples = (
    'mixture_of_experts(experts=4, shared=1, balance=0.0, balance_bias=True, gate="sigmoid")',
    # A capacity that drops nothing, so that packing and decoding are exact.
    'mixture_of_experts(experts=4, top_k=1, activation="gelu", normalize=False, capacity=4.0)',
  )

  experts: Size = 8
  top_k: Size = 2
  activation: str = 'swiglu'
  normalize: bool = True
  scale: NonNegativeFloat = 1.0
  capacity: Annotated[float, Ge(0.1)] | None = None
  shared: SizeOrZero = 0
  balance: NonNegativeFloat = 0.01
  z_loss: NonNegativeFloat = 0.0
  balance_bias: bool = False
  gate: str = 'softmax'

  def __post_init__(self):
    self.validate()
    super().__post_init__()

  def validate(self) -> None:
    """Raises ValueError for invalid settings."""
    if self.experts < 1:
      raise ValueError(f'experts={self.experts} must be at least 1')
    if not 1 <= self.top_k <= self.experts:
      raise ValueError(f'top_k={self.top_k} must lie in 1 … experts={self.experts}')
    if self.top_k == 1 < self.experts and self.normalize:
      raise ValueError(
        'top_k=1 with normalize=True gives every weight 1, so the router gets no gradient; '
        'use normalize=False'
      )
    self.expert  # raises for an unknown activation
    if self.gate not in GATES:
      raise ValueError(f'gate={self.gate!r} is unknown; known: {", ".join(map(repr, GATES))}')
    if self.capacity is not None and self.capacity <= 0:
      raise ValueError(f'capacity={self.capacity} must be more than 0, or None for no limit')
    for field in ('scale', 'shared', 'balance', 'z_loss'):
      if getattr(self, field) < 0:
        raise ValueError(f'{field}={getattr(self, field)} must be 0 or more')

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B T D']:
    logits = self.route(x)
    affinities = GATES[self.gate](logits)
    scores = affinities
    if self.balance_bias:
      bias = self.param(BALANCE_BIAS, with_logical_axes(zeros, ('expert',)), (self.experts,), jnp.float32)
      scores = jnp.exp(affinities) + bias[None, None]
    # Not `lax.top_k`: for that XLA copies the logits of all devices to each.
    choices = jnp.argsort(-scores, stable=True)[..., : self.top_k]
    top = jnp.take_along_axis(affinities, choices, -1)
    total = jax.nn.logsumexp(top, -1, keepdims=True) if self.normalize else 0
    choices = jnp.where(valid[..., None], choices, self.experts)
    mix = self.mix_dropless if self.capacity is None else self.mix_capped
    y = mix(x, choices, self.scale * jnp.exp(top - total))
    counts = (choices[..., None] == jnp.arange(self.experts)[None, None, None]).sum((0, 1, 2))
    self.report(logits, affinities, counts, valid)
    if self.balance_bias:
      self.sow_scalar('losses', BALANCE_BIAS, carry_excess_load(bias, counts))
    return shard(self.add_shared(y, x, valid), 'batch', 'length', 'embed')

  def mix_capped(
    self, x: Float[Array, 'B T D'], choices: Int[Array, 'B T k'], weights: Float[Array, 'B T k']
  ) -> Float[Array, 'B T D']:
    """Σ_k weight · chosen expert(x), where an expert has room for it; a choice of E is none."""
    (B, T, D), E, k = x.shape, self.experts, self.top_k
    capacity = min(T, math.ceil(self.capacity * k * T / E))

    def first_choices_first(x):
      return x.swapaxes(1, 2)  # [B, k, T]

    plan = jax.vmap(lambda row: assign_slots(row.reshape(k * T), E, capacity))(first_choices_first(choices))
    fit = (plan.slots < E * capacity).sum() / jnp.maximum((choices < E).sum(), 1)
    self.sow_scalar('metrics', 'dropped', 1 - fit)
    permute_rows = jax.vmap(permute)
    x = shard(x.astype(self.dtype)[:, None], 'batch', None, None, 'embed')
    x = permute_rows(jnp.broadcast_to(x, (B, k, T, D)).reshape(B, k * T, D), plan.sources)
    x = shard(x, 'batch', None, 'embed')
    with jax.named_scope(f'useful:{min(T * k, E * capacity)}:{E * capacity}'):
      y = self.apply_to_slots(x.reshape(B, E, capacity, D))
    y = shard(y, 'batch', None, None, 'embed')
    y = permute_rows(y.reshape(B, E * capacity, D), plan.slots).reshape(B, k, T, D)
    y = (y.astype(jnp.float32) * first_choices_first(weights)[..., None]).sum(1)
    return y.astype(self.dtype)

  def mix_dropless(
    self, x: Float[Array, 'B T D'], choices: Int[Array, 'B T k'], weights: Float[Array, 'B T k']
  ) -> Float[Array, 'B T D']:
    """Σ_k weight · chosen expert(x); a choice of E is none."""
    names = ['up', 'gate', 'down'] if self.is_gated else ['up', 'down']
    projections = {name: self.projection(name) for name in names}
    return mix_groups(
      self.activate,
      x.astype(self.dtype),
      choices,
      weights,
      {name: projection() for name, projection in projections.items()},
      {name: projection.axes for name, projection in projections.items()},
    )

  def report(self, logits, affinities, counts, valid) -> None:
    """Losses and metrics, as means over the tokens; `counts`: the choices of each expert."""
    count = jnp.maximum(valid.sum(), 1)
    chosen = counts / count

    def mean(x):
      return jnp.where(valid[..., None], x, 0).sum((0, 1)) / count

    if self.balance:
      balance = self.experts * (chosen * mean(jax.nn.softmax(affinities))).sum()
      self.sow_scalar('losses', 'balance', self.balance * balance)
    if self.z_loss:
      squares = jax.nn.logsumexp(logits, -1, keepdims=True) ** 2
      self.sow_scalar('losses', 'z_loss', self.z_loss * mean(squares).sum())
    self.sow_scalar('metrics', 'load', chosen.max() * self.experts / self.top_k)
