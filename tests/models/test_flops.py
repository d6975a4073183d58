"""FLOPs: against formulas by hand, against XLA, and equal wherever the same thing is computed."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tfm.conformance import tiny
from tfm.kernels.protocol import Kernel
from tfm.mixers.protocol import Context
from tfm.models import flops
from tfm.models.flops import PAIRS


T = 12


def products(f, *shapes):
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return list(flops.products(jax.make_jaxpr(f)(*arrays).jaxpr))


@pytest.mark.parametrize('tied', [True, False])
def test_formulas_of_a_decoder(tied):
  L, D, H, K, C, F, rows = 3, 16, 4, 2, 6, 40, 32
  model = tiny.decoder(
    T,
    layers=L,
    width=D,
    heads=H,
    kv_heads=K,
    head_width=C,
    feed_forward='swiglu',
    feed_forward_width=F,
    tie_embeddings=tied,
  )
  counted = flops.per_token(model, T)
  density = (T + 1) / (2 * T)
  assert counted.kinds == pytest.approx(
    {
      'mixer': L * 2 * D * C * (2 * H + 2 * K),
      'mixer' + PAIRS: L * 2 * T * H * C * 2 * density,
      'feed_forward': L * 2 * D * F * 3,
      'output': 2 * D * rows,
    }
  )
  assert counted.unmasked == pytest.approx(counted.forward + L * 4 * T * H * C * (1 - density))
  assert flops.training_flops_per_token(model, T) == counted.training == 3 * counted.forward


@pytest.mark.parametrize('tied', [True, False])
def test_a_narrow_table_is_lifted_and_lowered(tied):
  D, E, rows = 16, 6, 32
  kinds = flops.per_token(tiny.decoder(T, width=D, embedding_width=E, tie_embeddings=tied), T).kinds
  assert kinds['embedding'] == 2 * E * D
  assert kinds['output'] == (2 * D * E + 2 * E * rows if tied else 2 * D * rows)


def test_a_mixer_alone_is_all_that_counts():
  whole, alone = (flops.per_token(tiny.decoder(T, feed_forward=f), T).kinds for f in ('relu', 'none'))
  assert alone == {kind: count for kind, count in whole.items() if kind != 'feed_forward'} != whole


@pytest.mark.sampled(1)
@pytest.mark.parametrize('capacity, active', [(None, 2.0), (1.25, 2.0), (0.5, 1.0)])
def test_only_active_experts_count(capacity, active):
  """However many rows stand empty beside their tokens; with a small capacity the room there is."""
  L, D, F, E = 3, 16, 40, 4
  model = tiny.decoder(
    T,
    layers=L,
    width=D,
    feed_forward_width=F,
    feed_forward=f'mixture_of_experts({E}, top_k=2, shared=1, capacity={capacity})',
  )
  expected = L * (2 * D * E + 2 * D * F * 3 * (active + 1))
  assert flops.per_token(model, T).kinds['feed_forward'] == pytest.approx(expected)


def test_every_block_has_its_own_mask():
  # Five layers of the pattern a b: a three times, the last one beyond the scan, b twice.
  blocks = dict(a=dict(mask='causal & window(2)'), b=dict(heads=2, kv_heads=1))
  counted = flops.per_token(tiny.decoder(T, layers=5, pattern=('a', 'b'), blocks=blocks), T)
  seen = 3 * sum(min(t + 1, 3) for t in range(T)) + 2 * sum(t + 1 for t in range(T))
  assert counted.kinds['mixer' + PAIRS] == pytest.approx(seen * 16 * 2 * 2 / T)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  'other',
  [
    dict(scan=False),
    dict(remat='full'),
    dict(scan=False, remat='dots'),
    dict(dtype='bfloat16'),
    dict(dropout=dict(attention=0.1, residual=0.1, embedding=0.1)),
  ],
  ids=str,
)
def test_how_it_is_computed_does_not_count(other):
  model = dict(layers=3, pattern=('a', 'b'), blocks=dict(a=dict(mask='causal & window(2)'), b=dict()))
  same = flops.per_token(tiny.decoder(T, **model), T)
  assert flops.per_token(tiny.decoder(T, **model, **other), T).kinds == pytest.approx(same.kinds)


def test_the_kernel_does_not_count():
  @dataclasses.dataclass(frozen=True)
  class Hidden(Kernel):
    """As a vendor's: no product to be seen."""

    def attend(self, q, k, v, calls):
      return q, None

  model = tiny.decoder(T)
  hidden = flops.with_kernel(model, Hidden())
  tokens = jnp.zeros((1, T), jnp.int32)
  params = jax.eval_shape(lambda: hidden.init(jax.random.key(0), tokens, Context.contiguous(tokens)))
  jaxpr = jax.make_jaxpr(lambda p: hidden.apply(p, tokens, Context.contiguous(tokens))[0])(params).jaxpr
  assert not any('BTKGC' in str(p.scopes) for p in flops.products(jaxpr))
  assert flops.per_token(hidden, T) == flops.per_token(model, T)


def test_against_xla():
  """XLA counts elementwise operations too: norms, softmax and activations are 4 % at this width.

  Unscanned, as XLA counts a loop's body once; without the mask, as the dense kernel computes all pairs.
  """
  length, rows = 64, 2
  model = tiny.decoder(length, layers=2, width=256, heads=4, kv_heads=2, feed_forward_width=1024, scan=False)
  tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
  params = jax.eval_shape(lambda t: nn.unbox(model.init(jax.random.key(0), t, Context.contiguous(t))), tokens)

  def forward(params, tokens):
    return model.apply(params, tokens, Context.contiguous(tokens))[0]

  def xla(f):
    return jax.jit(f).lower(params, tokens).compile().cost_analysis()['flops'] / (rows * length)

  counted = flops.per_token(model, length)
  assert 1 < xla(forward) / counted.unmasked < 1.06
  step = jax.grad(lambda p, t: (forward(p, t) ** 2).sum())
  assert 1 < xla(step) / (3 * counted.unmasked) < 1.06


def test_loops_and_branches():
  def f(x, w):
    def body(x, _):
      inner, _ = jax.lax.scan(lambda x, _: (x @ w, None), x, length=3)
      return jax.checkpoint(lambda x: x @ w)(inner), None

    x, _ = jax.lax.scan(body, x, length=5)
    return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x @ w, x)

  assert sum(p.flops for p in products(f, (2, 4), (4, 4))) == (5 * (3 + 1) + 2) * 2 * 2 * 4 * 4


def test_a_loop_without_end_is_refused():
  def f(x):
    with jax.named_scope('mixer'):
      return jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ x, x)

  with pytest.raises(ValueError, match='a while in mixer holds matrix products'):
    products(f, (4, 4))


@pytest.mark.parametrize('groups', [1, 2, 6])
def test_convolution(groups):
  def f(x, w):
    return jax.lax.conv_general_dilated(
      x, w, (1,), 'VALID', dimension_numbers=('NWC', 'WIO', 'NWC'), feature_group_count=groups
    )

  out, taps, features = 8, 3, 6
  [product] = products(f, (2, 10, 6), (taps, 6 // groups, features))
  assert product.flops == 2 * (2 * out * features) * taps * (6 // groups)


def test_only_pairs_are_weighed_by_the_mask():
  def f(q, k, w):
    with jax.named_scope('pairs:5:5:0.25'):
      return jnp.einsum('tc,sc->ts', q @ w, k)

  projection, scores = products(f, (5, 3), (5, 7), (3, 7))
  assert not projection.pairs and projection.seen == 2 * 5 * 3 * 7
  assert scores.pairs and scores.seen == 2 * 5 * 5 * 7 / 4


def test_filling_does_not_count():
  def f(x, w):
    with jax.named_scope('useful:3:4'):
      return jax.lax.map(lambda x: x @ w, x)

  assert sum(p.flops for p in products(f, (4, 2, 5), (5, 7))) == 2 * 4 * 2 * 5 * 7 * 3 // 4


def test_scopes():
  assert flops.scopes('Decoder/Decoder.features//vmap(jvp(stack))/vmap()/q') == (
    'Decoder',
    'Decoder.features',
    'stack',
    'q',
  )
  assert flops.Counted.read(('a', 'pairs:3:4:1e-05', 'score')) == (3, 4, 1e-5)
