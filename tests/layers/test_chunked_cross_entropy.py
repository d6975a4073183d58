"""The loss over a vocabulary: in pieces, and cut over devices, it is the loss."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.analysis.collectives import find_collectives
from tfm.config.assemble import Experiment
from tfm.layers import cross_entropy
from tfm.layers.cross_entropy import VocabShard
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states


VOCAB, B, T, D = (
  50,
  8,
  16,
  32,
)  # 64 columns: of the last of eight devices none is a token, of the one before two are
RNG = np.random.default_rng(0)
FEATURES = jnp.asarray(RNG.standard_normal((B, T, D)), jnp.float32)
TARGETS = jnp.asarray(RNG.integers(0, VOCAB, (B, T)))
WEIGHTS = jnp.asarray(RNG.integers(0, 2, (B, T)), jnp.float32)


def make_case(tiny, mesh=None, **fields):
  """((objective, sums), gradients in head and features), compiled, of a loss like any other."""
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
  # The start is nearly uniform; other numbers than one's own are told better from logits that differ.
  params = jax.tree.map(lambda x: 30 * x if x.ndim > 1 else x, params)

  def loss(params, features):
    return objective.compute_loss(model, params, features, TARGETS, WEIGHTS, {})

  gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  if mesh is None:
    return jax.jit(gradient)(params, FEATURES), None
  mesh = meshes.make(mesh)
  where = sharding.named_shardings(boxed, mesh, rules)
  rows = sharding.batch_sharding(mesh, rules)
  with sharding.context(mesh, rules):
    run = (
      jax.jit(gradient, in_shardings=(where, rows), out_shardings=(None, (where, rows)))
      .lower(params, FEATURES)
      .compile()
    )
    return run(jax.device_put(params, where), jax.device_put(FEATURES, rows)), find_collectives(
      run.as_text(), mesh.shape
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


def assert_equal(got, target):
  (got, to), (target, expected) = got, target
  assert set(got[1]) == set(target[1])
  for name in got[1]:
    np.testing.assert_allclose(got[1][name], target[1][name], rtol=1e-5, err_msg=name)
  np.testing.assert_allclose(got[0], target[0], rtol=1e-5)
  for (path, a), b in zip(jax.tree.leaves_with_path(to), jax.tree.leaves(expected), strict=True):
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


@pytest.mark.parametrize(
  'head, mesh, chunk',
  QUICK + [pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK],
  ids=str,
)
def test_value_and_gradients_are_those_of_one_device(tiny, head, mesh, chunk):
  fields = HEADS[head]
  expected, _ = make_case(tiny, **fields)
  got, _ = make_case(tiny, mesh, **fields, **{'training.loss_chunk': chunk})
  assert_equal(got, expected)


@pytest.mark.parametrize('chunk', [1, 40, 1000])
def test_pieces_on_one_device_change_nothing(tiny, chunk):
  expected, _ = make_case(tiny, **HEADS['tie_embeddings'])
  got, _ = make_case(tiny, **HEADS['tie_embeddings'], **{'training.loss_chunk': chunk})
  assert_equal(got, expected)


def test_no_logits_travel(tiny):
  """Of each token a few numbers do, and the gradient of its features; of the head what fsdp cuts, once for
  all pieces.
  """
  mesh = dict(data=2, fsdp=2, tensor=2)
  _, found = make_case(tiny, mesh, **HEADS['tie_embeddings'], **{'training.loss_chunk': 32})
  rows, table, features = B * T // 4, 64 // 2 * D, B * T // 4 * D  # of one device, in numbers
  over_tensor = sum(one.bytes for one in found if one.axes == ('tensor',))
  assert {one.kind for one in found if one.axes == ('tensor',)} == {'all-reduce'}
  assert 4 * features <= over_tensor <= 4 * (features + 8 * rows)
  gathered = [one for one in found if one.kind == 'all-gather']
  assert (
    [one.axes for one in gathered] == [('fsdp',)]
    and gathered[0].bytes == 4 * table
    and gathered[0].count == 1
  )
  rest = sum(one.bytes for one in found if one.axes != ('tensor',) and one.kind != 'all-gather')
  assert rest <= 4 * (table + table // 2 + 100)  # scattered over fsdp, and what is left added up over data


class TestColumns:
  LOGITS = jnp.asarray(3 * RNG.standard_normal((B, T, 64)), jnp.float32)

  def token_losses(self, logits, columns, smoothing=0.1, z=0.01):
    return cross_entropy.cross_entropy_with_z_loss(columns, smoothing, z, logits, TARGETS)

  def test_the_gradient_is_that_of_the_formula(self):
    """By autodiff of each part of it."""

    def plain(logits):
      log_p = jax.nn.log_softmax(logits)
      hit = jnp.take_along_axis(log_p, TARGETS[..., None], -1)[..., 0]
      log_z = jax.nn.logsumexp(logits, -1)
      objective = -(0.9 * hit + 0.1 * log_p.mean(-1)) + 0.01 * log_z**2
      return jnp.stack((objective, -hit))

    mix = jnp.asarray(RNG.standard_normal((2, B, T)), jnp.float32)
    logits = self.LOGITS[..., :VOCAB]
    ours, pull = jax.vjp(jax.jit(lambda x: jnp.stack(self.token_losses(x, VocabShard()))), logits)
    theirs, expected = jax.vjp(jax.jit(plain), logits)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pull(mix)[0], expected(mix)[0], rtol=1e-4, atol=1e-6)

  def test_columns_beyond_the_vocabulary_are_none(self):
    target, expected = jax.vjp(lambda x: self.token_losses(x[..., :VOCAB], VocabShard())[0], self.LOGITS)
    got, pull = jax.vjp(lambda x: self.token_losses(x, VocabShard(vocab=VOCAB))[0], self.LOGITS)
    np.testing.assert_allclose(got, target, rtol=1e-6)
    np.testing.assert_allclose(pull(target)[0], expected(target)[0], rtol=1e-5, atol=1e-7)
    assert not np.asarray(pull(target)[0])[..., VOCAB:].any()

  def test_the_first_of_equals_is_the_likeliest(self):
    logits = jnp.zeros((B, T, 64)).at[..., 9].set(1.0).at[..., 40].set(1.0).at[..., 60].set(2.0)
    mesh = meshes.make(dict(tensor=8))
    columns, cut = VocabShard(('tensor',), VOCAB), jax.sharding.PartitionSpec(None, None, 'tensor')
    found = jax.shard_map(
      columns.argmax, mesh=mesh, in_specs=cut, out_specs=jax.sharding.PartitionSpec(), check_vma=False
    )(logits)
    assert (found == 9).all() and (VocabShard(vocab=VOCAB).argmax(logits) == 9).all()
