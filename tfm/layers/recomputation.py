"""What the backward pass computes again although no checkpoint policy says so, as it costs no product."""

from collections.abc import Callable

import flax.linen as nn
import jax


# A context around the trace of a model: whether `recompute` does.
recomputes_activations = jax.make_user_context(False)


def recompute(f: Callable) -> Callable:
  """f(module, arguments), of whose inner values the backward pass keeps none, where that is on: it computes
  what it needs of them again from the arguments.
  """
  return nn.remat(f) if recomputes_activations.value else f
