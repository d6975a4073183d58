"""The mesh changes nothing: eight devices, however they are cut, give the loss and gradients of one."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import VOCAB, boxed, config, parameters
from tfm.mixers.protocol import Context
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


B, T = 8, 12
# data, fsdp, tensor
MESHES = [cut for cut in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(cut) == 8]
ROWS = np.random.default_rng(0).integers(0, VOCAB, (B, T + 1))
SEGMENTS = np.array([[1] * 7 + [2] * 5] * 4 + [[0] * 2 + [1] * 8 + [0] * 2] * 4)
POSITIONS = np.array([[*range(7), *range(5)]] * 4 + [[0, 0, *range(8), 0, 0]] * 4)
# For mixers that cannot keep documents apart: one a row, some of them padded on both sides.
ALONE = (
  np.array([[*range(12)]] * 4 + [[0, 0, *range(8), 0, 0]] * 4),
  np.array([[1] * 12] * 4 + [[0] * 2 + [1] * 8 + [0] * 2] * 4),
)
# Every size divides by 8, so that each cut is possible; plain parts, because eight devices compile slowly.
WIDE = dict(
  width=32,
  heads=8,
  kv_heads=8,
  head_width=4,
  feed_forward_width=32,
  vocab_multiple=16,
  bias=False,
  feed_forward='relu',
  norm='rmsnorm',
)


class Sharded:
  """Loss and gradients of one model, on one device and on meshes."""

  def __init__(self, **model):
    bare = dict(feed_forward_width=None) if model.get('feed_forward') == 'none' else {}
    self.config = config(**WIDE | bare | model)
    m = self.config.model
    packs = collect.variant('mixer', m.mixer).supports_packing
    packs = packs and not collect.variant('feed_forward', m.feed_forward).reads_other_tokens
    self.rows = ROWS, *((POSITIONS, SEGMENTS) if packs else ALONE)
    self.rules = sharding.parse_rules(self.config.rules)
    self.model = Experiment(self.config).build_model(VOCAB, causal=False)
    self.boxes = boxed(self.model)
    self.params = parameters(self.model, boxes=self.boxes)

  @functools.cached_property
  def alone(self):
    return jax.jit(jax.value_and_grad(self.loss))(self.params, *map(jnp.asarray, self.rows))

  @functools.cached_property
  def rounding(self):
    """The most by which a gradient changes if each parameter is rounded up or down, of eight draws (which
    differ by a factor of ten): what no mesh can be held to."""
    draw = np.random.default_rng(0)
    gradients, rows = jax.jit(jax.grad(self.loss)), [jnp.asarray(x) for x in self.rows]

    def round_at_random(x):
      return x * (1 + 2.0**-24 * draw.choice([-1, 1], x.shape)).astype(np.float32)

    def largest_change():
      changed = gradients(jax.tree.map(round_at_random, self.params), *rows)
      changes = jax.tree.map(lambda a, b: np.abs(a - b).max(), changed, self.alone[1])
      return max(map(float, jax.tree.leaves(changes)))

    return max(largest_change() for _ in range(8))

  def loss(self, params, rows, positions, segments, layout='arbitrary'):
    logits, _ = self.model.apply(
      {'params': params}, rows[:, :-1], Context(positions, segments, layout=layout)
    )
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(rows[:, 1:], VOCAB)).sum(-1).mean()

  def features(self, params, rows, positions, segments):
    return self.model.apply(
      {'params': params}, rows[:, :-1], Context(positions, segments), method='features'
    )[0]

  def on(self, mesh):
    """The parameters and the batch, each where it belongs on the mesh."""
    where = sharding.named_shardings(self.boxes, mesh, self.rules)
    batch = [jax.device_put(x, sharding.batch_sharding(mesh, self.rules)) for x in self.rows]
    return where, jax.device_put(self.params, where), batch


@functools.cache
def sharded(**model) -> Sharded:
  return Sharded(**model)


def settings(texts=collect.specs):
  """(mixer, position, mask): each mixer in the plainest surroundings, each position under the defaults."""
  plain = [tuple(collect.surroundings(mixer).values()) for mixer in texts('mixer')]
  mixer, position, mask = collect.SURROUNDINGS.values()
  return list(
    dict.fromkeys([(mixer, position, mask), *plain, *((mixer, p, mask) for p in texts('position'))])
  )


def cuts():
  """(mixer, position, mask, mesh): all meshes for the defaults; for the others the one that cuts all three
  ways.

  A mesh costs a compilation of seconds, so of mixers all but the defaults' and `linear`, positions, and for
  the defaults the meshes that cut two ways, run under `make test-slow`.
  """
  quick, three = [tuple(collect.surroundings(collect.examples('mixer', 'linear')[0]).values())], (2, 2, 2)
  quick.insert(0, tuple(collect.SURROUNDINGS.values()))
  for setting in settings():
    for sizes in MESHES if setting == quick[0] else [three]:
      now = setting in quick and (sizes == three or 8 in sizes)
      yield pytest.param(
        *setting, sizes, id=f'{" · ".join(setting)} on {sizes}', marks=[] if now else [pytest.mark.slow]
      )


def axes(sizes):
  return dict(zip(('data', 'fsdp', 'tensor'), sizes))


def equal_on(result, sizes):
  mesh = meshes.make(sizes)
  where, params, batch = result.on(mesh)
  with sharding.context(mesh, result.rules):
    run = jax.jit(jax.value_and_grad(result.loss), out_shardings=(None, where))
    loss, grads = run(params, *batch)
  np.testing.assert_allclose(loss, result.alone[0], rtol=1e-5)
  expected = [np.asarray(g) for g in jax.tree.leaves(result.alone[1])]
  size = max(np.abs(g).max() for g in expected)
  for (path, a), b in zip(jax.tree.leaves_with_path(grads), expected, strict=True):
    tolerance = 1e-5 * size
    if not np.allclose(a, b, rtol=1e-4, atol=tolerance):
      tolerance = max(tolerance, result.rounding)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.sampled(1)
@pytest.mark.parametrize('mixer, position, mask, sizes', list(cuts()))
def test_loss_and_gradients_are_those_of_one_device(mixer, position, mask, sizes):
  equal_on(sharded(mixer=mixer, position=position, mask=mask), axes(sizes))


@pytest.mark.parametrize(
  'sizes, model',
  [
    (
      (1, 2, 4),
      dict(kv_heads=4, remat='full', scan=False, tie_embeddings=True, layers=1, embedding_width=16),
    ),
    pytest.param(
      (2, 2, 2),
      dict(kv_heads=2, norm_placement='post', feed_forward='swiglu', bias=True),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['grouped, tied to a narrow table, remat, unscanned', 'post, gated, biases'],
)
def test_other_shapes_of_model_too(sizes, model):
  equal_on(sharded(**model), axes(sizes))


@pytest.mark.sampled(16)
@pytest.mark.parametrize('sizes', MESHES, ids=str)
@pytest.mark.parametrize('mixer, position, mask', settings())
def test_parameters_lie_cut_as_the_rules_say(mixer, position, mask, sizes):
  setup = sharded(mixer=mixer, position=position, mask=mask)
  mesh = meshes.make(axes(sizes))
  _, params, _ = setup.on(mesh)
  boxes = jax.tree.leaves_with_path(setup.boxes, is_leaf=lambda x: isinstance(x, sharding.Parameter))
  for (path, box), x in zip(boxes, jax.tree.leaves(params), strict=True):
    cuts = [math.prod(mesh.shape[axis] for axis in setup.config.rules[name].split()) for name in box.names]
    own = tuple(size // cut for size, cut in zip(x.shape, cuts, strict=True))
    assert {shard.data.shape for shard in x.addressable_shards} == {own}, jax.tree_util.keystr(path)
    assert len({str(shard.index) for shard in x.addressable_shards}) == math.prod(cuts)
  # No kernel is whole on a device where fsdp or tensor could have cut it.
  if sizes != (8, 1, 1):
    whole = [
      path
      for (path, _), x in zip(boxes, jax.tree.leaves(params))
      if path[-1].key == 'kernel' and x.sharding.is_fully_replicated
    ]
    assert not whole


@pytest.mark.parametrize('sizes', [(8, 1, 1), (2, 2, 2), (1, 1, 8)], ids=str)
def test_activations_are_cut_too(sizes):
  setup = sharded(mixer='softmax', position='rope')
  mesh = meshes.make(axes(sizes))
  _, params, batch = setup.on(mesh)
  with sharding.context(mesh, setup.rules):
    x = jax.jit(setup.features)(params, *batch)
  assert x.sharding.shard_shape(x.shape) == (B // (sizes[0] * sizes[1]), T, 32)
