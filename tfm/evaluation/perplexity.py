"""How well a model predicts a split: loss, perplexity, bits per byte, accuracy."""

import collections
import math
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np

from tfm.shapes import Array, PyTree


def perplexity(
    params: PyTree,
    step: Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]],
    batches: Iterable[Mapping[str, np.ndarray]],
    sharding: jax.sharding.Sharding,
    token_bytes: np.ndarray,
) -> dict[str, float]:
  """One pass over `batches`, each token counted once.

  Args:
    step: the compiled evaluation step: sums of `loss` (nats), `accuracy` and `tokens` of a batch.
    batches: `inputs`, `targets`, `positions`, `segments` [B T]; a target counts where segments > 0.
    sharding: where a batch goes.
    token_bytes: [V], the UTF-8 bytes that each token stands for.

  Returns:
    `loss` in nats per token; `perplexity`, its exponential; `bits_per_byte`, the whole loss in bits
    over the bytes that were predicted (the end of a document costs bits and has no bytes);
    `accuracy`, the share of tokens that were the likeliest; `tokens`, how many were counted.
  """
  total, size = collections.Counter(), 0
  for batch in batches:
    placed = {name: jax.make_array_from_process_local_data(sharding, x) for name, x in batch.items()}
    total.update({name: float(x) for name, x in jax.device_get(step(params, placed)).items()})
    size += int(token_bytes[batch['targets'][batch['segments'] > 0]].sum())
  tokens = max(total['tokens'], 1)
  loss = total['loss'] / tokens
  return dict(
    loss=loss, perplexity=math.exp(min(loss, 700)), bits_per_byte=total['loss'] / math.log(2) / max(size, 1),
    accuracy=total['accuracy'] / tokens, tokens=total['tokens'])
