"""Cross-entropy in chunks and sharded over devices equals the plain loss."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.analysis.collectives import find_collectives
from tfm.config.assemble import Experiment
from tfm.layers import cross_entropy, float32_gradients
from tfm.layers.cross_entropy import VocabShard
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states


# 64 columns: of eight devices the last holds no token of the vocabulary, and the one before it two.
VOCAB, B, T, D = 50, 8, 16, 32
RNG = np.random.default_rng(0)
FEATURES = jnp.asarray(RNG.standard_normal((B, T, D)), jnp.float32)
TARGETS = jnp.asarray(RNG.integers(0, VOCAB, (B, T)))
WEIGHTS = jnp.asarray(RNG.integers(0, 2, (B, T)), jnp.float32)


def compute_loss_and_collectives(tiny, mesh=None, **fields):
  """((objective, sums), gradients of head and features) of a compiled loss; its collectives on a mesh."""
  config = tiny(
    **{'model.vocab_multiple': 64, 'model.heads': 8, 'model.layers': 1, 'data.length': T, **fields}
  )
  model, objective, rules = (
    Experiment(config).build_model(VOCAB),
    Experiment(config).objective,
    sharding.parse_rules(config.rules),
  )
  boxed = jax.jit(lambda key: states.init_params(model, key, 1, T))(jax.random.key(0))
  params = nn.unbox(boxed)
  # Initial logits are nearly uniform; larger ones make errors visible.
  params = jax.tree.map(lambda x: 30 * x if x.ndim > 1 else x, params)

  def loss(params, features):
    return objective.compute_loss(model, params, features, TARGETS, WEIGHTS, {})

  gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  if mesh is None:
    return jax.jit(gradient)(params, FEATURES), None
  mesh = meshes.make(mesh)
  shardings = sharding.named_shardings(boxed, mesh, rules)
  rows = sharding.batch_sharding(mesh, rules)
  with sharding.context(mesh, rules):
    compiled = (
      jax.jit(gradient, in_shardings=(shardings, rows), out_shardings=(None, (shardings, rows)))
      .lower(params, FEATURES)
      .compile()
    )
    return compiled(jax.device_put(params, shardings), jax.device_put(FEATURES, rows)), find_collectives(
      compiled.as_text(), mesh.shape
    )


OBJECTIVE = 'causal_lm(label_smoothing=0.1, z_loss=0.01)'
HEADS = {
  'tie_embeddings': {'model.tie_embeddings': True, 'objective': OBJECTIVE},
  'untied, bias, transform, cap': {
    'model.tie_embeddings': False,
    'model.output_bias': True,
    'model.output_transform': 'gelu',
    'model.output_soft_cap': 5.0,
    'objective': OBJECTIVE,
  },
  'narrow table': {'model.embedding_width': 16, 'objective': OBJECTIVE},
  'answers': {'objective': 'answers', 'data.source': 'copy', 'data.packing': 'answered'},
}


def assert_equal(actual, expected):
  (actual, gradients), (expected, expected_gradients) = actual, expected
  assert set(actual[1]) == set(expected[1])
  for name in actual[1]:
    np.testing.assert_allclose(actual[1][name], expected[1][name], rtol=1e-5, err_msg=name)
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
  for (path, a), b in zip(
    jax.tree.leaves_with_path(gradients), jax.tree.leaves(expected_gradients), strict=True
  ):
    np.testing.assert_allclose(
      a, b, rtol=1e-4, atol=1e-5 * max(1e-3, np.abs(b).max()), err_msg=jax.tree_util.keystr(path)
    )


QUICK = [('tie_embeddings', dict(data=2, fsdp=2, tensor=2), 32)]
ALL = [
  (head, mesh, chunk)
  for head in HEADS
  for chunk in (0, 32)
  for mesh in (
    dict(tensor=8),
    dict(fsdp=8),
    dict(data=2, fsdp=2, tensor=2),
    dict(sequence=2, tensor=4),
    dict(data=2, expert=4),
  )
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'head, mesh, chunk',
  QUICK + [pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK],
  ids=str,
)
def test_sharded_loss_equals_one_device(tiny, head, mesh, chunk):
  fields = HEADS[head]
  expected, _ = compute_loss_and_collectives(tiny, **fields)
  actual, _ = compute_loss_and_collectives(tiny, mesh, **fields, **{'training.loss_chunk': chunk})
  assert_equal(actual, expected)


@pytest.mark.parametrize('chunk', [1, 40, 1000])
def test_chunks_on_one_device_change_nothing(tiny, chunk):
  expected, _ = compute_loss_and_collectives(tiny, **HEADS['tie_embeddings'])
  actual, _ = compute_loss_and_collectives(tiny, **HEADS['tie_embeddings'], **{'training.loss_chunk': chunk})
  assert_equal(actual, expected)


def test_logits_are_not_exchanged(tiny):
  """Devices exchange a few numbers per token, the gradient of its features, and what fsdp shards of the head,
  once for all chunks.
  """
  mesh = dict(data=2, fsdp=2, tensor=2)
  _, collectives = compute_loss_and_collectives(
    tiny, mesh, **HEADS['tie_embeddings'], **{'training.loss_chunk': 32}
  )
  rows, table, features = B * T // 4, 64 // 2 * D, B * T // 4 * D  # per device, in numbers
  over_tensor = sum(one.bytes for one in collectives if one.axes == ('tensor',))
  assert {one.kind for one in collectives if one.axes == ('tensor',)} == {'all-reduce'}
  assert 4 * features <= over_tensor <= 4 * (features + 8 * rows)
  gathers = [one for one in collectives if one.kind == 'all-gather']
  assert (
    [one.axes for one in gathers] == [('fsdp',)] and gathers[0].bytes == 4 * table and gathers[0].count == 1
  )
  rest = sum(one.bytes for one in collectives if one.axes != ('tensor',) and one.kind != 'all-gather')
  assert rest <= 4 * (table + table // 2 + 100)  # reduce-scattered over fsdp, and the rest summed over data


class TestVocabShard:
  LOGITS = jnp.asarray(3 * RNG.standard_normal((B, T, 64)), jnp.float32)

  def token_losses(self, logits, shard, smoothing=0.1, z=0.01):
    logits = cross_entropy.mask_padding(shard, logits)
    return cross_entropy.cross_entropy_with_z_loss(shard, smoothing, z, logits, TARGETS)

  def test_gradient_equals_that_of_the_formula(self):
    """JAX differentiates each term of the formula."""

    def plain(logits):
      log_p = jax.nn.log_softmax(logits)
      hit = jnp.take_along_axis(log_p, TARGETS[..., None], -1)[..., 0]
      log_z = jax.nn.logsumexp(logits, -1)
      objective = -(0.9 * hit + 0.1 * log_p.mean(-1)) + 0.01 * log_z**2
      return jnp.stack((objective, -hit))

    mix = jnp.asarray(RNG.standard_normal((2, B, T)), jnp.float32)
    logits = self.LOGITS[..., :VOCAB]
    ours, pull = jax.vjp(jax.jit(lambda x: jnp.stack(self.token_losses(x, VocabShard()))), logits)
    theirs, pull_formula = jax.vjp(jax.jit(plain), logits)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pull(mix)[0], pull_formula(mix)[0], rtol=1e-4, atol=1e-6)

  def test_columns_beyond_the_vocabulary_are_ignored(self):
    expected, expected_pull = jax.vjp(
      lambda x: self.token_losses(x[..., :VOCAB], VocabShard())[0], self.LOGITS
    )
    actual, pull = jax.vjp(lambda x: self.token_losses(x, VocabShard(vocab=VOCAB))[0], self.LOGITS)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(pull(expected)[0], expected_pull(expected)[0], rtol=1e-5, atol=1e-7)
    assert not np.asarray(pull(expected)[0])[..., VOCAB:].any()

  def test_products_with_the_hessian_ignore_padding(self):
    """Forward over reverse: padding of -∞ must not make NaN."""

    def product(shard, logits, direction):
      gradient = jax.grad(lambda x: self.token_losses(x, shard)[0].sum())
      return jax.jvp(gradient, (logits,), (direction,))[1]

    direction = jnp.asarray(RNG.standard_normal(self.LOGITS.shape), jnp.float32)
    expected = product(VocabShard(), self.LOGITS[..., :VOCAB], direction[..., :VOCAB])
    actual = product(VocabShard(vocab=VOCAB), self.LOGITS, direction)
    np.testing.assert_allclose(actual[..., :VOCAB], expected, rtol=1e-4, atol=1e-6)
    assert not np.asarray(actual)[..., VOCAB:].any()

  @pytest.mark.parametrize('stored', [False, True])
  def test_exponentials_are_stored_where_operands_are(self, stored):
    with float32_gradients.operands_in_memory(stored):
      program = str(jax.make_jaxpr(lambda x: self.token_losses(x, VocabShard()))(self.LOGITS))
    assert ('optimization_barrier' in program) == stored

  def test_padding_has_no_gradient(self):
    """Nor NaN, where a loss selects its columns after an operation on -∞."""
    shard = VocabShard(vocab=VOCAB)

    def penalty(logits):
      logits = cross_entropy.mask_padding(shard, logits)
      return jnp.where(shard.is_token(logits), logits**2, 0).sum()

    gradient = jax.grad(penalty)(self.LOGITS)
    np.testing.assert_allclose(gradient[..., :VOCAB], 2 * self.LOGITS[..., :VOCAB])
    assert not np.asarray(gradient)[..., VOCAB:].any()

  @pytest.mark.parametrize('target', [-1, VOCAB, 63, 100])
  def test_a_target_outside_the_vocabulary_has_log_z(self, target):
    """As the shards of a mesh have it, so that a weight of 0 leaves it out."""
    for shard, logits in ((VocabShard(vocab=VOCAB), self.LOGITS), (VocabShard(), self.LOGITS[..., :VOCAB])):
      logits = cross_entropy.mask_padding(shard, logits)
      loss, log_z = cross_entropy.token_cross_entropy(logits, jnp.full((B, T), target), shard)
      np.testing.assert_array_equal(loss, log_z)

  def test_argmax_returns_the_first_of_equal_logits(self):
    logits = jnp.zeros((B, T, 64)).at[..., 9].set(1.0).at[..., 40].set(1.0).at[..., 60].set(2.0)
    mesh = meshes.make(dict(tensor=8))
    shard, spec = VocabShard(('tensor',), VOCAB), jax.sharding.PartitionSpec(None, None, 'tensor')

    def argmax(shard, logits):
      return shard.argmax(cross_entropy.mask_padding(shard, logits))

    of_shards = jax.shard_map(
      functools.partial(argmax, shard),
      mesh=mesh,
      in_specs=spec,
      out_specs=jax.sharding.PartitionSpec(),
      check_vma=False,
    )(logits)
    assert (of_shards == 9).all() and (argmax(VocabShard(vocab=VOCAB), logits) == 9).all()
