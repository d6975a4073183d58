"""Which checkpoints stay, and which one a name means."""

import jax.numpy as jnp
import pytest

from tfm.training.checkpoint import Checkpoints
from tfm.training.state import State


def test_the_last_few_and_the_best_are_kept(tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=2)
  with pytest.raises(ValueError, match='holds no checkpoint'):
    checkpoints.find('last')
  for step, loss in enumerate((5.0, 1.0, 4.0, 3.0, None), 1):
    params = {'kernel': jnp.full((2,), float(step))}
    state = State(jnp.int32(step), params, {'count': jnp.int32(step)}, jnp.zeros(2, jnp.uint32), None)
    checkpoints.save(state, dict(data=step), loss)
    checkpoints.wait()
  checkpoints.close()
  checkpoints = Checkpoints(tmp_path)
  assert sorted(checkpoints.manager.all_steps()) == [2, 4, 5]
  assert [checkpoints.find(which) for which in ('last', 'best', '4')] == [5, 2, 4]
  assert checkpoints.run(2) == dict(data=2)
  target = State(jnp.int32(0), {'kernel': jnp.zeros(2)}, {'count': jnp.int32(0)}, jnp.zeros(2, jnp.uint32), None)
  state = checkpoints.state(4, target)
  assert state.step == 4 and state.opt_state['count'] == 4 and state.params['kernel'].tolist() == [4.0, 4.0]
  checkpoints.close()
