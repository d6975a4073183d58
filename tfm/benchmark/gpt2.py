"""Training and decoding speed of a GPT-2-shaped model, measured in this process.

  python -m tfm.benchmark.gpt2 training 16      → {"tokens_per_second": …, "peak_memory_mib": …}
  python -m tfm.benchmark.gpt2 training 12 'save("attention mixer")'     with this config.model.remat
  python -m tfm.benchmark.gpt2 training 12 "flags=auto ynnpack" vocab=50304     with these flags, shape
  python -m tfm.benchmark.gpt2 decoding 8 1     greedy; with a temperature after the beams: sampling

`gpt2_torch` and `nanogpt_torch` do the same with PyTorch; `tfm benchmark gpt2` and `tfm benchmark nanogpt`
alternate, and print the ratios.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping

from tfm.benchmark.process import peak_memory


# The same shape in both frameworks.
SHAPE = dict(layers=6, width=384, heads=6, length=256, vocab=8192)
TRAINING_SECONDS = 12.0
DECODING = dict(prompt=32, new=128, rounds=5)


def print_measurement(tasks: Mapping[str, Callable[..., float]]) -> None:
  """Measures `training ROWS [REMAT] [FIELD=VALUE …]` or `decoding ROWS BEAMS [TEMPERATURE]`, as the command
  line says, and prints the result.
  """
  task, *values = sys.argv[1:]
  pairs = [value.partition('=') for value in values]
  fields = {name: read_number(value) for name, equals, value in pairs if equals and name.isidentifier()}
  print_rate(tasks[task](*(read_number(x) for x in values if x.partition('=')[0] not in fields), **fields))


def read_number(text: str) -> int | str:
  """Digits as a number, anything else as it is."""
  return int(text) if text.isdecimal() else text


def print_rate(tokens_per_second: float) -> None:
  """Prints it as JSON, with the largest memory of this process."""
  print(json.dumps(dict(tokens_per_second=tokens_per_second, peak_memory_mib=peak_memory())))


def make_config(rows: int, remat: str = 'none', flags: str = 'auto', **shape: int):
  """GPT-2 (Radford et al. 2019) at the benchmark's shape, or with other numbers of `SHAPE`."""
  from tfm.config.overlay import complete
  from tfm.config.resolve import resolve_config

  shape = SHAPE | shape
  return resolve_config(
    complete(
      dict(
        data=dict(length=shape['length']),
        model=dict(
          layers=shape['layers'],
          width=shape['width'],
          heads=shape['heads'],
          position='learned',
          bias=True,
          feed_forward='gelu_tanh',
          remat=remat,
        ),
        training=dict(batch_size=rows, loss_chunk=512),
        compiler=dict(flags=flags),
      )
    )
  )


def measure_training(rows: int, remat: str = 'none', flags: str = 'auto', **shape: int) -> float:
  """Tokens per second of whole training steps: forward, backward, clipping, AdamW.

  Args:
    shape: numbers other than those of `SHAPE`.
  """
  from tfm.benchmark.training_step import tokens_per_second
  from tfm.config.assemble import Experiment

  experiment = Experiment(make_config(rows, remat, flags, **shape))
  return tokens_per_second(experiment, (SHAPE | shape)['vocab'], TRAINING_SECONDS)


def measure_decoding(batch: int, beams: int, temperature: int = 0) -> float:
  """New tokens of all rows per second, with the key/value cache, prefill included. One beam is greedy, or
  samples from all tokens at a temperature above 0.
  """
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
  model = Experiment(make_config(batch)).build_model(SHAPE['vocab'])
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
      model,
      params,
      list(prompts),
      max_tokens=DECODING['new'],
      eos=None,
      sampling=Sampling(float(temperature)),
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
  print_measurement(dict(training=measure_training, decoding=measure_decoding))
