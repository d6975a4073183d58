"""A mesh changes no loss and no gradient of an objective."""

import jax
import numpy as np

from tfm.conformance import tiny
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


def require_equal_on_mesh(model, objective, batch, axes):
  """Fails unless the loss and its gradients on a mesh are those of one device, up to rounding."""
  boxes, params = tiny.boxed(model), tiny.parameters(model)
  rules = sharding.parse_rules(tiny.config().rules)

  def loss(params, batch):
    return objective(model, params, batch, jax.random.key(0))[0]

  expected = jax.jit(jax.value_and_grad(loss))(params, batch)
  mesh = meshes.make(axes)
  where = sharding.named_shardings(boxes, mesh, rules)
  with sharding.context(mesh, rules):
    run = jax.jit(jax.value_and_grad(loss), out_shardings=(None, where))
    ours = run(jax.device_put(params, where), jax.device_put(batch, sharding.batch_sharding(mesh, rules)))
  size = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected[1]))
  np.testing.assert_allclose(ours[0], expected[0], rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * size), ours[1], expected[1]
  )
