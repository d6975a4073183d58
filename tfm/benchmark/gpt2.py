"""Training and decoding speed of a GPT-2-shaped model, measured in this process.

  python -m tfm.benchmark.gpt2 training     → {"tokens_per_second": …, "peak_memory_mib": …}

`gpt2_torch` does the same with PyTorch; `tfm benchmark gpt2` alternates both and prints the ratio.
"""

import json
import sys
import time
from collections.abc import Callable

from tfm.benchmark.process import peak_memory


# The same shape in both frameworks.
SHAPE = dict(layers=6, width=384, heads=6, length=256, vocab=8192)
TRAINING = dict(batch_size=16, warmup=2, steps=6)
DECODING = dict(prompt=32, new=224, rounds=3)


def print_measurement(training: Callable[[], float], decoding: Callable[[int, int], float]) -> None:
  """Measures `training` or `decoding ROWS BEAMS`, as the command line says, and prints the result as JSON."""
  task, *sizes = sys.argv[1:]
  rate = training() if task == 'training' else decoding(*map(int, sizes))
  print(json.dumps(dict(tokens_per_second=rate, peak_memory_mib=peak_memory())))


def make_config():
  """GPT-2 (Radford et al. 2019) at the benchmark's shape."""
  from tfm.config.overlay import complete
  from tfm.config.resolve import resolve_config

  return resolve_config(
    complete(
      dict(
        data=dict(length=SHAPE['length']),
        model=dict(
          layers=SHAPE['layers'],
          width=SHAPE['width'],
          heads=SHAPE['heads'],
          position='learned',
          bias=True,
          feed_forward='gelu_tanh',
        ),
        training=dict(batch_size=TRAINING['batch_size'], loss_chunk=512),
      )
    )
  )


def measure_training() -> float:
  """Tokens per second of whole training steps: forward, backward, clipping, AdamW."""
  import jax
  import numpy as np

  from tfm.config.assemble import Experiment
  from tfm.parallel import freed_memory, sharding
  from tfm.parallel import mesh as meshes
  from tfm.training import state as states
  from tfm.training.step import train_step

  freed_memory.return_after_compiling()
  c = make_config()
  model, objective, (optimizer, rate) = (
    Experiment(c).build_model(SHAPE['vocab']),
    Experiment(c).objective,
    Experiment(c).build_optimizer(),
  )
  mesh, rules = meshes.from_config(c), sharding.parse_rules(c.rules)
  size, length = TRAINING['batch_size'], SHAPE['length']
  make = states.init(model, optimizer, (size, length), scaled=False)
  where = states.state_shardings(states.abstract_state(make), mesh, rules)
  (state,) = states.init_states(make, [0], where, mesh, rules)
  tokens = np.random.default_rng(0).integers(0, SHAPE['vocab'], (size, length + 1)).astype(np.int32)
  batch = dict(
    inputs=tokens[:, :-1],
    targets=tokens[:, 1:],
    segments=np.ones((size, length), np.int32),
    positions=np.broadcast_to(np.arange(length, dtype=np.int32), (size, length)),
  )
  batch = jax.device_put(batch, sharding.batch_sharding(mesh, rules))
  with sharding.context(mesh, rules):
    step = jax.jit(
      train_step(model, objective, optimizer, rate, 1), donate_argnums=0, out_shardings=(where, None)
    )
    for _ in range(TRAINING['warmup']):
      state, metrics = step(state, batch)
    jax.block_until_ready(state)
    start = time.perf_counter()
    for _ in range(TRAINING['steps']):
      state, metrics = step(state, batch)
    jax.block_until_ready(state)
  return TRAINING['steps'] * size * length / (time.perf_counter() - start)


def measure_decoding(batch: int, beams: int) -> float:
  """New tokens of all rows per second, with the key/value cache, prefill included; one beam: greedy."""
  import flax.linen as nn
  import jax
  import numpy as np

  from tfm.config.assemble import Experiment
  from tfm.decoding import beam, loop
  from tfm.decoding.sampling import Sampling
  from tfm.decoding.unroll_layers import unroll_layers
  from tfm.parallel import freed_memory
  from tfm.training import state as states

  freed_memory.return_after_compiling()
  model = Experiment(make_config()).build_model(SHAPE['vocab'])
  params = jax.jit(lambda key: nn.unbox(states.init_params(model, key, 1, SHAPE['length'])))(
    jax.random.key(0)
  )
  model, params = unroll_layers(model, params)
  prompts = np.random.default_rng(0).integers(0, SHAPE['vocab'], (batch, DECODING['prompt']))

  def generate():
    if beams > 1:
      settings = beam.BeamSearch(beams, beam.Power(1.0), 'likely')  # those of transformers
      rows = beam.search(model, params, list(prompts), max_tokens=DECODING['new'], eos=-1, settings=settings)
      return [hypotheses[0].tokens for hypotheses in rows]
    return loop.generate_all(
      model, params, list(prompts), max_tokens=DECODING['new'], eos=None, sampling=Sampling(temperature=0.0)
    )

  lengths = {len(row) for row in generate()}
  if lengths != {DECODING['new']}:
    raise RuntimeError(f'generate returned {lengths} tokens, not {DECODING["new"]}')
  return decoding_rate(generate, batch)


def decoding_rate(generate: Callable, batch: int) -> float:
  """New tokens per second of `generate()`, which has run once."""
  start = time.perf_counter()
  for _ in range(DECODING['rounds']):
    generate()
  return DECODING['rounds'] * batch * DECODING['new'] / (time.perf_counter() - start)


if __name__ == '__main__':
  print_measurement(measure_training, measure_decoding)
