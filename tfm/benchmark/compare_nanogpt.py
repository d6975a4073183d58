"""The training step of GPT-2s beside nanoGPT's model in PyTorch, eager and compiled, in one run.

Shapes are small (6 layers of width 384, vocabulary 8192, 12 rows of 256 tokens, as `tfm benchmark gpt2` has
it), vocabulary (50,304), long (4 rows of 1024 tokens) and gpt2 (12 layers of width 768, vocabulary 50,304, 4
rows of 256), all in float32 and without dropout. tfm is measured as it is and with the compiler's preset
ynnpack, PyTorch eager and with torch.compile, which needs a C++ compiler. In every round each is a process of
its own. The ratio of a step is the seconds of PyTorch, of its faster process in the same round, by those of
this; that of memory is this by the smaller of PyTorch's medians. Peak memory is the largest resident size of
the process, imports and compilation included.
"""

import importlib.util
import statistics
import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.beside_torch import rounds_argument
from tfm.benchmark.gpt2 import SHAPE
from tfm.benchmark.process import describe_machine, measure
from tfm.data.progress_bar import track
from tfm.errors import require, suggest


# Name → rows of a batch, and what is not as in `SHAPE`.
VOCAB = dict(vocab=50304)  # GPT-2's, rounded up to a multiple of 64, as nanoGPT has it
SHAPES = {
  'small': (12, {}),
  'vocabulary': (12, VOCAB),
  'long': (4, dict(length=1024)),
  'gpt2': (4, dict(layers=12, width=768, heads=12) | VOCAB),
}
# Name → the module, and its arguments after the shape.
VARIANTS = {
  'tfm': ('tfm.benchmark.gpt2', ()),
  'tfm, ynnpack': ('tfm.benchmark.gpt2', ('flags=auto ynnpack',)),
  'PyTorch, eager': ('tfm.benchmark.nanogpt_torch', ()),
  'PyTorch, compiled': ('tfm.benchmark.nanogpt_torch', ('compiled=1',)),
}
PEERS = 'PyTorch, eager', 'PyTorch, compiled'
COLUMNS = '', 's/step', 'ratio', 'lowest', 'highest', 'peak MiB', 'ratio'


def arguments(parser):
  rounds_argument(parser)
  listed = 'which to measure (default: %(default)s)'
  parser.add_argument('--shapes', default=','.join(SHAPES), metavar='A,B', help=listed)


def main(args):
  names = args.shapes.split(',')
  for name in names:
    require(name in SHAPES, f'--shapes={name} is unknown; {suggest(name, SHAPES)}')
  require(args.rounds >= 1, f'--rounds={args.rounds} must be at least 1')
  with_torch = importlib.util.find_spec('torch') is not None
  variants = [name for name in VARIANTS if with_torch or name not in PEERS]
  for name in names:  # a table as soon as it is measured
    table = make_table(name, measure_shape(name, variants, args.rounds))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
  print(describe_machine())
  if not with_torch:
    print('PyTorch is not installed; `make oracle` installs it.')


def measure_shape(shape: str, variants: Sequence[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
  """The seconds of a step and the MiB of each variant, by round."""
  rows, fields = SHAPES[shape]
  tokens = rows * (SHAPE | fields)['length']
  arguments = 'training', str(rows), *(f'{name}={value}' for name, value in fields.items())
  found = {variant: [] for variant in variants}
  runs = list(variants) * rounds
  for variant in track(runs, shape, len(runs)):
    module, options = VARIANTS[variant]
    result = measure(module, *arguments, *options)
    found[variant].append((tokens / result['tokens_per_second'], result['peak_memory_mib']))
  return found


def make_table(shape: str, found: Mapping[str, Sequence[tuple[float, float]]]) -> Table:
  """Medians over the rounds of what `measure_shape` found, and ratios to PyTorch."""
  rows, fields = SHAPES[shape]
  size = SHAPE | fields
  model = f'{size["layers"]} × {size["width"]}, vocabulary {size["vocab"]:,}'
  table = Table(
    title=f'{shape}: {model}, {rows} × {size["length"]} tokens', title_justify='left', box=box.SIMPLE
  )
  for column in COLUMNS:
    table.add_column(column, justify='right')
  by_round = list(zip(*(found[name] for name in PEERS if name in found)))
  peer_seconds = [min(seconds for seconds, _ in peers) for peers in by_round]
  peer_memory = min(
    (statistics.median(mib for _, mib in found[name]) for name in PEERS if name in found), default=0
  )
  for name, measured in found.items():
    seconds, memory = zip(*measured)
    ratios = [peer / own for peer, own in zip(peer_seconds, seconds)]
    mib = statistics.median(memory)
    table.add_row(
      name,
      f'{statistics.median(seconds):.3g}',
      *([f'{f(ratios):.2f}' for f in (statistics.median, min, max)] if ratios else [''] * 3),
      f'{mib:,.0f}',
      f'{mib / peer_memory:.2f}' if peer_memory else '',
    )
  return table
