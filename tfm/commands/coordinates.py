"""The coordinate check of a parametrization: do activations of wide models move as far as of narrow ones?

  tfm coordinates --config=lm:smoke --widths=64,256 --config.model.parametrization='mup(base_width=64)'

Trains each width for a few steps on one batch, and prints how far the outputs of blocks and the logits are
from their initial values, with the exponent p of change ∝ width^p. Under muP p is near 0; under the standard
parametrization it is not, and the best learning rate of a narrow model is not that of a wide one.
"""

import argparse

from tfm.commands.cli import resolve_with_overrides, validate_overrides
from tfm.config.load import load_config
from tfm.errors import require


OVERRIDES = '--config.'


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--config', required=True, metavar='FILE[:args]', help='config file')
  parser.add_argument(
    '--widths', required=True, metavar='D,D', help='widths of the model, such as 64,128,256'
  )
  parser.add_argument('--steps', type=int, default=4, help='training steps (default: 4)')
  parser.add_argument('--to', metavar='FILE', help='draw the changes into this picture')


def validate(args: argparse.Namespace) -> None:
  validate_overrides(load_config(args.config), args.overrides)


def main(args: argparse.Namespace) -> None:
  from tfm.analysis.console import new_table, wide_console
  from tfm.analysis.coordinate_check import measure_coordinates

  words = args.widths.split(',')
  require(
    len(words) > 1 and all(word.isdecimal() and int(word) for word in words),
    f'--widths={args.widths} must be two or more widths, such as 64,128,256',
  )
  require(args.steps >= 1, f'--steps={args.steps} must be at least 1')
  configs = [
    resolve_with_overrides(
      load_config(args.config), [*args.overrides, f'--config.model.width={word}', '--config.model.scan=False']
    )
    for word in words
  ]
  found = measure_coordinates(configs, args.steps)
  exponents = found.exponents()
  title = f'change since initialization after {args.steps} steps, root mean square'
  table = new_table(title, '', *(f'>width {width}' for width in found.widths), '>exponent of the width')
  for name, changes in found.changes.items():
    table.add_row(name, *(f'{x:.4g}' for x in changes[:, -1]), f'{exponents[name]:+.2f}')
  console = wide_console()
  console.print(table)
  if args.to:
    from tfm.analysis.coordinate_plot import draw

    draw(found, args.to)
    console.print(args.to, highlight=False)
