"""Draws strong.png and weak.png, and prints the table of docs/plans.md, from the plan.json of each folder
beside this file.

python docs/plans/draw.py
"""

import json
import pathlib
import re

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter


matplotlib.use('Agg')
HERE = pathlib.Path(__file__).parent
PARTS = dict(compute='products', memory='memory traffic', links='links between chips')


def plans() -> dict[str, dict]:
  """Folder → its training step, numbers in their order."""

  def order(path):
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', path.parent.name)]

  return {
    path.parent.name: json.loads(path.read_text())['plans'][0]
    for path in sorted(HERE.glob('*/plan.json'), key=order)
  }


def series(found: dict[str, dict], start: str) -> list[dict]:
  """The plans of one model and kind of chip, by devices."""
  return sorted(
    (one for name, one in found.items() if re.fullmatch(rf'{start}-\d+', name) and one['bound']),
    key=lambda one: one['devices'],
  )


def strong(found: list[dict], to: pathlib.Path) -> None:
  """The least time of a step of one batch, by what it would take alone, over chips."""
  figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
  chips = [one['devices'] for one in found]
  for part, label in PARTS.items():
    axes.plot(chips, [one['bound'][part] for one in found], 'o-', label=label)
  axes.plot(
    chips,
    [found[0]['bound']['seconds'] * chips[0] / n for n in chips],
    ':',
    color='grey',
    label='as many times faster as chips',
  )
  axes.set(
    xscale='log',
    yscale='log',
    xlabel='chips',
    ylabel='seconds of a step, at least',
    title='LLaMA-3 70B on v5p, 16.8 M tokens a step',
  )
  ticks(axes, chips)
  axes.legend(frameon=False)
  figure.savefig(to, dpi=140)


def weak(found: list[dict], to: pathlib.Path) -> None:
  """The greatest rate of each chip, over chips that have the same work each."""
  figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
  chips = [one['devices'] for one in found]
  for part, label in PARTS.items():
    axes.plot(
      chips,
      [one['tokens'] / one['devices'] / one['bound'][part] for one in found],
      'o-',
      label=f'if {label} were all',
    )
  axes.set(
    xscale='log',
    yscale='log',
    xlabel='chips',
    ylabel='tokens/s of a chip, at most',
    title='LLaMA-3 8B on v5e, 65,536 tokens a chip and step',
  )
  ticks(axes, chips)
  axes.legend(frameon=False)
  figure.savefig(to, dpi=140)


def ticks(axes, chips: list[int]) -> None:
  axes.set_xticks(chips, [f'{n:,}' for n in chips])
  axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ''))
  axes.grid(alpha=0.3)


def format_memory(m: dict) -> str:
  """Needed of capacity; a sum of categories is an upper bound, with a footnote."""
  text = f'{m["needed"] / 2**30:.1f} of {m["capacity"] / 2**30:.0f} GiB'
  return f'≤ {text}¹' if m['source'] == 'sum' else text


def table(found: dict[str, dict]) -> str:
  """One row for each plan."""
  lines = [
    '| plan | mesh | needs, of | time ≥ | bound by | compute, memory, links | tokens/s ≤ | MFU ≤ |',
    '|---|---|---|---:|---|---|---:|---:|',
  ]
  for name, one in found.items():
    b, m = one['bound'], one['memory']
    mesh = ' × '.join(f'{axis} {size}' for axis, size in one['mesh'].items() if size > 1)
    row = [f'[{name}](plans/{name}/plan.md)', mesh, format_memory(m)]
    row += (
      ['does not fit', '', '', '', '']
      if not b
      else [
        f'{b["seconds"]:.3g} s',
        b['by'],
        ', '.join(f'{b[part]:.3g}' for part in PARTS) + ' s',
        f'{one["tokens_per_second"]:,.0f}',
        f'{one["mfu"]:.1%}',
      ]
    )
    lines.append(f'| {" | ".join(row)} |')
  return '\n'.join(lines)


if __name__ == '__main__':
  every = plans()
  if len(of := series(every, 'llama-3-70b-v5p')) > 1:
    strong(of, HERE / 'strong.png')
  if len(of := series(every, 'llama-3-8b-v5e')) > 1:
    weak(of, HERE / 'weak.png')
  print(table(every))
