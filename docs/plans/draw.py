"""Draws strong.png and weak.png, and writes the tables of docs/plans.md.

They are made from published.json and the plan.json of each folder beside this file.

python docs/plans/draw.py
"""

import json
import pathlib
import re
import textwrap

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter


matplotlib.use('Agg')
HERE = pathlib.Path(__file__).parent
PARTS = dict(compute='products', memory='memory traffic', links='links between chips')
RESOURCES = (*PARTS, 'network', 'host')


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
  return f'≤ {text}¹' if m['source'] == 'sum' or m.get('host') else text


def format_range(ends: list[float], text: str) -> str:
  """([744, 861], ',.0f') → '744–861'."""
  return '–'.join(f'{end:{text}}' for end in ends)


def times(b: dict) -> list[float]:
  """The seconds of each resource."""
  return [b[part] for part in RESOURCES]


def format_parts(b: dict) -> str:
  return ', '.join(f'{seconds:.3g}' for seconds in times(b)) + ' s'


def plans_table(found: dict[str, dict]) -> str:
  """One row for each plan."""
  lines = [
    '| plan | chips | mesh | needs, of | compute, memory, links, network, host | time of a step | bound by '
    '| tokens/s a chip | MFU ≤ |',
    '|---|---:|---|---|---|---:|---|---:|---:|',
  ]
  for name, one in found.items():
    b, m = one['bound'], one['memory']
    mesh = ' × '.join(f'{axis} {size}' for axis, size in one['mesh'].items() if size > 1)
    row = [f'[{name}](plans/{name}/plan.md)', f'{one["devices"]:,}', mesh, format_memory(m)]
    row += (
      ['', 'does not fit', '', '', '']
      if not b
      else [
        format_parts(b),
        f'{format_range([max(times(b)), sum(times(b))], ".3g")} s',
        b['by'],
        format_range(bracket(one, {}), ',.0f'),
        f'{one["mfu"]:.1%}',
      ]
    )
    lines.append(f'| {" | ".join(row)} |')
  return '\n'.join(lines)


def bracket(one: dict, reached: dict[str, float]) -> list[float]:
  """Tokens/s of a chip without overlap and if all overlaps, if chips reach these parts of their peaks."""
  seconds = [time / reached.get(part, 1) for part, time in zip(RESOURCES, times(one['bound']))]
  tokens = one['tokens'] / one['devices']
  return [tokens / sum(seconds), tokens / max(seconds)]


def place(rate: float, ends: list[float]) -> str:
  """Where a rate lies: `inside`, or how far from the nearer end."""
  least, most = ends
  if least <= rate <= most:
    return 'inside'
  return f'{rate / least:.2f} of the lower end' if rate < least else f'{rate / most:.2f} of the upper end'


def published_table(found: dict[str, dict]) -> str:
  """Published rates beside the brackets of the plans with their settings, and below them what differs."""
  runs = json.loads((HERE / 'published.json').read_text(encoding='utf-8'))
  lines = [
    '| published run | compute, memory, links, network, host | measured tokens/s a chip | bracket | |',
    '|---|---|---:|---:|---|',
  ]
  for run in runs:
    one, rate = found[run['plan']], run['tokens_per_second_per_chip']
    cells = [format_parts(one['bound']), f'{rate:,}', *bracket_cells(one, rate, {})]
    lines.append(f'| [{run["run"]}](plans/{run["plan"]}/plan.md) | {" | ".join(cells)} |')
    if reached := run.get('reached'):
      cells = ['the same, at the measured parts of the peaks', '', '', *bracket_cells(one, rate, reached)]
      lines.append(f'| {" | ".join(cells)} |')
  for run in runs:
    text = f'- **{run["run"]}**: {run["settings"]}. What differs in the plan: {run["differs"]}.'
    if 'reached' in run:
      text += f' Measured parts of the peaks: {run["reached_source"]}.'
    lines += ['', *textwrap.wrap(f'{text} Source: {run["source"]}.', 120, subsequent_indent='  ')]
  return '\n'.join(lines)


def bracket_cells(one: dict, rate: float, reached: dict[str, float]) -> list[str]:
  """The bracket, and where a rate lies."""
  ends = bracket(one, reached)
  return [format_range(ends, ',.0f'), place(rate, ends)]


def write_tables(page: pathlib.Path, tables: dict[str, str]) -> None:
  """Replaces what stands between `<!-- name -->` and `<!-- end of name -->` of a page."""
  text = page.read_text(encoding='utf-8')
  for name, table in tables.items():
    start, end = f'<!-- {name} -->\n', f'<!-- end of {name} -->'
    head, _, rest = text.partition(start)
    text = f'{head}{start}\n{table}\n\n{end}{rest.partition(end)[2]}'
  page.write_text(text, encoding='utf-8')


if __name__ == '__main__':
  every = plans()
  strong(series(every, 'llama-3-70b-v5p'), HERE / 'strong.png')
  weak(series(every, 'llama-3-8b-v5e'), HERE / 'weak.png')
  write_tables(HERE.parent / 'plans.md', dict(plans=plans_table(every), published=published_table(every)))
