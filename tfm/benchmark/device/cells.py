"""The cells of `tfm benchmark device`: what is measured, in the order of its value."""

import dataclasses
import importlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any


# What the modules of a suffix need, and kernels.
PACKAGES = {'torch': ('torch',), 'fla': ('torch', 'fla'), 'tokamax': ('tokamax',)}


@dataclasses.dataclass(frozen=True)
class Cell:
  """One measurement.

  Attributes:
    group: of the report.
    function: 'module:function' in this package, which returns its numbers.
    arguments: of the function.
    seconds: limit of its process.
  """

  group: str
  function: str
  arguments: Mapping[str, Any]
  seconds: int = 120

  @property
  def key(self) -> str:
    """Names it in the results."""
    return json.dumps([self.function, dict(self.arguments)])

  @property
  def packages(self) -> tuple[str, ...]:
    """The packages that it needs beside those of training."""
    module = self.function.partition(':')[0].rpartition('_')[2]
    return PACKAGES.get(module, ()) + PACKAGES.get(self.arguments.get('kernel'), ())

  def measure(self) -> dict[str, float]:
    """Runs the function in this process."""
    module, _, function = self.function.partition(':')
    return getattr(importlib.import_module(f'tfm.benchmark.device.{module}'), function)(**self.arguments)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The shapes of the cells.

  Attributes:
    products: m, k, n of matrix products, as in a layer of the model: tokens, and widths of projections.
    copies: MiB.
    model: fields of the model that differ from LLaMA 3.2 of 1B; vocab: its vocabulary.
    tokens: of a training step; lengths: of its rows.
    heads: of attention alone; head_width: their width; attended: tokens of its rows, for each length.
    checked: kernel → dtypes in which it is compared with the specification; checked_mixers: likewise;
      checked_length: tokens of the rows; checked_widths: of heads.
    kernels: of attention; kernel_lengths: of its rows; short: of the shortest.
    presets: of the compiler.
    decoded: rows that are decoded at once; prompt, new: tokens of each.
    interpret: whether kernels for GPUs are interpreted, by blocks of 16.
  """

  products: tuple[tuple[int, int, int], ...]
  copies: tuple[int, ...]
  model: Mapping[str, int]
  vocab: int
  tokens: int
  lengths: tuple[int, ...]
  heads: int
  head_width: int
  attended: int
  checked: Mapping[str, tuple[str, ...]]
  checked_mixers: tuple[str, ...]
  checked_length: int
  checked_widths: tuple[int, ...]
  kernels: tuple[str, ...]
  kernel_lengths: tuple[int, ...]
  short: int
  decoded: tuple[int, ...]
  prompt: int
  new: int
  presets: tuple[str, ...]
  interpret: bool = False

  def kernel(self, name: str) -> str:
    """The spec of a kernel that runs where these cells do."""
    return INTERPRETED.get(name, name) if self.interpret else name

  def mixer(self, name: str) -> str:
    """The same of a mixer's."""
    return name.replace('"pallas"', '"pallas(16, interpret=True)"') if self.interpret else name


INTERPRETED = {'cudnn': "cudnn('xla')", 'flash': 'flash(16, interpret=True)'}
REMAT = 'full', 'dots_with_no_batch_dims', "save('block_input mixer/q mixer/k mixer/v')"
VARIANTS = 'causal', 'window', 'documents', 'soft cap', 'alibi', 't5', 'prefix', 'sinks'
TORCH_KERNELS = 'flex', 'sdpa'
UNSUPPORTED = {'cudnn': ('documents', 'soft cap', 'alibi', 't5', 'prefix', 'sinks'), 'sdpa': ('soft cap',)}
SHORT_KERNELS = 'cudnn', 'flash', 'chunked', 'dense'  # for rows so short that the last may be the fastest
RECURRENCES = 'linear', 'gated_delta', 'mamba', 'mamba2', 'recurrent', 'convolution'
FLA_MIXERS = 'linear', 'gated_delta', 'mamba2'
BY_KERNEL = tuple(f'{name}(recurrence="pallas")' for name in FLA_MIXERS)
FULL = Sizes(
  products=(
    (16_384, 2048, 2048),
    (16_384, 2048, 8192),
    (16_384, 8192, 2048),
    (4096, 2048, 128_256),
    (8192, 8192, 8192),
    (64, 2048, 8192),
  ),
  copies=(64, 1024, 4096),
  model={},
  vocab=128_256,
  tokens=16_384,
  lengths=(2048, 8192),
  heads=16,
  head_width=128,
  attended=32_768,
  checked=dict(cudnn=('bfloat16',), tokamax=('bfloat16', 'float32'), flash=('bfloat16', 'float32')),
  checked_mixers=BY_KERNEL,
  checked_length=1000,
  checked_widths=(64, 128),
  kernels=('cudnn', 'tokamax', 'flash', 'flash(128)', 'chunked'),
  kernel_lengths=(2048, 8192, 32_768),
  short=512,
  decoded=(1, 8, 64),
  prompt=128,
  new=128,
  # On one device: the scheduler, and two layers of the scan in one iteration without copies between them.
  presets=('latency_hiding', 'pipelined_collectives'),
)
SMOKE = Sizes(
  products=((64, 32, 32), (32, 32, 64)),
  copies=(1,),
  model=dict(layers=2, width=32, heads=4, kv_heads=2, feed_forward_width=64),
  vocab=128,
  tokens=64,
  lengths=(32,),
  heads=2,
  head_width=16,
  attended=128,
  checked=dict(cudnn=('bfloat16',)),
  checked_mixers=BY_KERNEL[:1],
  checked_length=40,
  checked_widths=(16,),
  kernels=('cudnn', 'tokamax', 'flash', 'chunked'),
  kernel_lengths=(128,),
  short=16,
  decoded=(1, 2),
  prompt=4,
  new=4,
  presets=(),
  interpret=True,
)


def list_cells(sizes: Sizes) -> list[Cell]:
  """All cells, the most valuable first."""
  return [
    *(Cell('matrix products', 'calibration:matmul', dict(m=m, k=k, n=n)) for m, k, n in sizes.products),
    *(Cell('copies', 'calibration:copy', dict(mib=mib)) for mib in sizes.copies),
    *list_steps(sizes),
    *list_errors(sizes),
    *list_kernels(sizes),
    *list_mixers(sizes),
    *(
      Cell(
        'decoding',
        'decoding:greedy',
        dict(rows=rows, prompt=sizes.prompt, new=sizes.new, vocab=sizes.vocab, model=dict(sizes.model)),
        240,
      )
      for rows in sizes.decoded
    ),
    Cell('profile', 'step:profile', step(sizes, sizes.lengths[0]), 240),
  ]


def list_errors(sizes: Sizes) -> Iterator[Cell]:
  """Whether the kernels that are compiled for the device are right on it, at short rows."""
  small = dict(length=sizes.checked_length, batch=2, heads=4)
  for (kernel, dtypes), channels in itertools.product(sizes.checked.items(), sizes.checked_widths):
    for dtype in dtypes:
      changes = dict(kernel=sizes.kernel(kernel), dtype=dtype, head_width=channels)
      yield Cell('errors', 'errors:kernel', changes | small)
  for mixer in sizes.checked_mixers:
    fields = dict(fields=dict(mixer=sizes.mixer(mixer)), exact=dict(mixer=mixer.partition('(')[0]))
    fields = {name: dict(position='none') | value for name, value in fields.items()}
    yield Cell('errors', 'errors:mixer', fields | small | dict(head_width=sizes.checked_widths[0]))


def step(sizes: Sizes, length: int, **changes: str | bool) -> dict[str, Any]:
  """The arguments of a training step: of kernel, remat, scan and compiler flags as `changes` say."""
  fixed = dict(length=length, rows=sizes.tokens // length, vocab=sizes.vocab, model=dict(sizes.model))
  return fixed | dict(kernel='auto', remat='none', flags='auto') | changes


def shape(sizes: Sizes, length: int) -> dict[str, int]:
  """Rows of attention, with the same tokens at every length."""
  return dict(batch=sizes.attended // length, heads=sizes.heads, head_width=sizes.head_width)


def list_steps(sizes: Sizes) -> Iterator[Cell]:
  """Each kernel, remat policy and preset of the compiler with the defaults of the others; PyTorch; then other
  kernels by policies.
  """
  for length in sizes.lengths:
    for changes in (
      *(dict(kernel=sizes.kernel(kernel)) for kernel in ('auto', *sizes.kernels)),
      *(dict(remat=remat) for remat in REMAT),
      dict(scan=False),
      *(dict(flags=flags) for flags in sizes.presets),
    ):
      yield Cell('training step', 'step:measure', step(sizes, length, **changes), 300)
    for attention, compiled in (('sdpa', True), ('flex', True), ('sdpa', False)):
      arguments = step(sizes, length)
      del arguments['kernel'], arguments['remat'], arguments['flags']
      yield Cell(
        'training step', 'step_torch:measure', arguments | dict(attention=attention, compiled=compiled), 300
      )
  for length, kernel, remat in itertools.product(sizes.lengths, ('flash', 'chunked'), REMAT):
    changes = dict(kernel=sizes.kernel(kernel), remat=remat)
    yield Cell('training step', 'step:measure', step(sizes, length, **changes), 300)


def list_mixers(sizes: Sizes) -> Iterator[Cell]:
  """Softmax attention and recurrences, by XLA and by kernels, with their projections; and those of fla."""
  mixers = [dict(mixer='softmax')]
  mixers += [dict(mixer=sizes.mixer(mixer), position='none') for mixer in RECURRENCES + BY_KERNEL]
  for length in sizes.kernel_lengths:
    fixed = dict(length=length, **shape(sizes, length))
    for fields in mixers:
      yield Cell('mixers', 'attention:mixer', dict(fields=fields) | fixed)
    for mixer in FLA_MIXERS:
      yield Cell('mixers', 'mixers_fla:mixer', dict(fields=dict(mixer=mixer)) | fixed)


def list_kernels(sizes: Sizes) -> Iterator[Cell]:
  """Causal attention at all lengths first, then the other variants, at the length in the middle first."""

  def cell(kernel, variant, length):
    module = 'attention_torch' if kernel in TORCH_KERNELS else 'attention'
    arguments = dict(kernel=sizes.kernel(kernel), variant=variant, length=length) | shape(sizes, length)
    return Cell('kernels', f'{module}:kernel', arguments)

  kernels = (*sizes.kernels, *TORCH_KERNELS)
  for length, kernel in itertools.product(sizes.kernel_lengths, kernels):
    yield cell(kernel, 'causal', length)
  for kernel in SHORT_KERNELS:
    yield cell(kernel, 'causal', sizes.short)
  middle = sizes.kernel_lengths[len(sizes.kernel_lengths) // 2]
  for length in sorted(sizes.kernel_lengths, key=lambda length: length != middle):
    for kernel, variant in itertools.product(kernels, VARIANTS[1:]):
      if variant not in UNSUPPORTED.get(kernel, ()):
        yield cell(kernel, variant, length)
