"""Decoding with the key/value cache, of the LLaMA of `step`."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import numpy as np

from tfm.benchmark.device.step import make_experiment
from tfm.benchmark.timing import seconds_per_call
from tfm.decoding import loop
from tfm.decoding.sampling import Sampling
from tfm.models import memory
from tfm.training import state as states


def greedy(rows: int, prompt: int, new: int, vocab: int, model: Mapping[str, int]) -> dict[str, float]:
  """New tokens/s of greedy decoding in bfloat16, the prompts' reading included.

  Layers are separate and parameters in bfloat16 from the start, so that the peak is that of decoding.
  """
  decoder = make_experiment(prompt + new, rows, model, scan=False).build_model(vocab)

  @jax.jit
  def init(key):
    return jax.tree.map(lambda x: x.astype('bfloat16'), nn.unbox(states.init_params(decoder, key, 1, prompt)))

  params = init(jax.random.key(0))
  prompts = list(np.random.default_rng(0).integers(0, vocab, (rows, prompt)))

  def generate():
    return loop.generate_all(
      decoder, params, prompts, max_tokens=new, eos=None, sampling=Sampling(temperature=0.0)
    )

  seconds = seconds_per_call(generate, lambda texts: texts, seconds=10.0, calls=5)
  return dict(
    tokens_per_second=rows * new / seconds, ms_per_token=1000 * seconds / new, gib=memory.peak_usage() / 2**30
  )
