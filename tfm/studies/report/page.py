"""A study's report: one page that any browser opens, offline, on a laptop or a phone; and its tables."""

import csv
import datetime
import importlib.resources
import io
import json
import pathlib
import re
import urllib.parse
from collections.abc import Iterator, Sequence

import jinja2
import markupsafe
from matplotlib.ticker import EngFormatter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfm.studies import statistics
from tfm.studies.report import palette, pictures, ranking
from tfm.studies.report.pictures import NARROW, WIDE, Picture
from tfm.studies.report.ranking import Row, answer, decimals, number
from tfm.studies.statistics import count, p_value


COLUMNS = ('arm', 'seed', 'metric', 'x', 'value')
# Fields of an arm that cost something, as axes.
COSTS = {
  'parameters': 'parameters',
  'flops_per_token': 'training FLOPs per token',
  'memory_bytes': 'bytes of memory',
  'tokens_per_second': 'training tokens/s',
}
BAND = 'Mean over seeds; the band reaches from the lowest to the highest.'
LOSSES = {'train': 'Training', 'validation': 'Validation'}
# A metric with more places than this is a picture, and no table.
FEW = 8
# Costs that differ by less are not worth an axis: it is what matching allows.
EQUAL = 0.02


def write(results: dict, directory: pathlib.Path) -> pathlib.Path:
  """Writes report.html, report.md, results.csv, results.json and a PNG for each picture; returns the page's path.

  results.csv is the long form of the values, and of the curves as the metrics `train_loss_at_step` and
  `validation_loss_at_step`.

  Args:
    results: study, arms, values and curves, as `tfm ablate` and `tfm compare` make them. A study may name its training
      `length`, to be marked, and as `costs` more metrics to set the quality against.

  Raises:
    ValueError: for results that cannot be read; see `ranking.check`. Nothing is written then.
  """
  rows = ranking.ranked(results)
  drawn = list(drawings(results, rows))
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  (directory / 'results.json').write_text(json.dumps(results, ensure_ascii=False), encoding='utf-8')
  with (directory / 'results.csv').open('w', newline='', encoding='utf-8') as file:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows([v[column] for column in COLUMNS] for v in results['values'])
    writer.writerows(
      (c['arm'], c['seed'], f'{c["split"]}_loss_at_step', c['step'], c['loss']) for c in results['curves']
    )
  for picture in drawn:
    pictures.png(picture.draw, directory / f'{picture.name}.png')
  (directory / 'report.md').write_text(markdown(results, rows, drawn), encoding='utf-8')
  page = directory / 'report.html'
  page.write_text(html(results, rows, drawn), encoding='utf-8')
  return page


def table(results: dict) -> str:
  """The ranking as text, with the answer above it and what did not finish below.

  Raises:
    ValueError: for results that cannot be read; see `ranking.check`.
  """
  rows = ranking.ranked(results)
  study = results['study']
  shown = Table(box=box.SIMPLE, pad_edge=False)
  for column, justify in (
    ('', 'right'),
    ('arm', 'left'),
    ('seeds', 'right'),
    (f'mean {study["metric"]}', 'right'),
    ('95 % interval', 'right'),
    ('minus base', 'right'),
    ('Holm p', 'right'),
    ('', 'left'),
    *([('learning rate', 'left')] if tried(results) else []),
  ):
    shown.add_column(
      column, justify=justify, overflow='fold', no_wrap=column not in ('arm', '', 'learning rate')
    )
  of_arms = {arm['name']: setting(arm) for arm in results['arms']}
  for cells in map(entry(rows), rows):
    # As text, not as rich's markup: an arm may be called '[b]'.
    shown.add_row(
      *(
        Text(cells[key]) for key in ('rank', 'name', 'n', 'mean', 'interval', 'difference', 'holm', 'verdict')
      ),
      *([Text(chosen(of_arms[cells['name']]))] if tried(results) else []),
    )
  text = io.StringIO()
  console = Console(file=text, width=120, color_system=None)
  console.print(shown)
  tail = [f'{row.name}: {note}' for row in rows for note in row.notes]
  return '\n'.join(
    [answer(results, rows), text.getvalue().rstrip(), '', *reading(results, rows), *tail]
  ).rstrip()


def html(results: dict, rows: Sequence[Row], drawn: Sequence[Picture]) -> str:
  """The page of report.html, with all pictures in it."""
  study, arms = results['study'], {arm['name']: arm for arm in results['arms']}
  return template('page.html').render(
    study=study,
    answer=answer(results, rows),
    light=palette.variables(False),
    dark=palette.variables(True),
    facts=facts(results, rows),
    reading=reading(results, rows),
    rows=[entry(rows)(row) | dict(arm=arms[row.name]) | setting(arms[row.name]) for row in rows],
    figures={
      picture.name: dict(
        title=picture.title,
        caption=picture.caption,
        alt=f'{picture.title}. {picture.caption}',
        wide=embedded(picture, WIDE),
        narrow=embedded(picture, NARROW),
      )
      for picture in drawn
    },
    along=ranking.listed([*dict.fromkeys(parted(name)[1] for name in ranking.metrics(results, by_x=True))]),
    rates=tried(results),
    others=others(results, rows),
    made=made(study),
    links=linked,
  )


def markdown(results: dict, rows: Sequence[Row], drawn: Sequence[Picture]) -> str:
  """What is worth keeping with a text: the ranking, the arms, means at a few places each, how it was made; a few pictures."""
  shown = {'ranking', 'loss_at_length', *(f'cost_{cost}' for cost in results['study'].get('costs', ()))}
  return template('page.md').render(
    study=results['study'],
    answer=answer(results, rows),
    reading=reading(results, rows),
    rows=[*map(entry(rows), rows)],
    arms=settings(results, rows),
    pictures=[picture for picture in drawn if picture.name in shown],
    lines=[*means(results, rows)],
    others=others(results, rows),
    made=made(results['study']),
  )


def means(
  results: dict, rows: Sequence[Row]
) -> Iterator[tuple[str, str, list[float], list[tuple[str, list[str]]]]]:
  """(quantity, along what, where, arm → means) of the metrics that have values at a few places."""
  for name in ranking.metrics(results, by_x=True):
    lines = pictures.traces(rows, ranking.lines(results, name))
    places = sorted({x for line in lines for x in line.x})
    if len(places) <= FEW:
      found = {line.row.name: dict(zip(line.x, line.mean)) for line in lines}
      yield (
        *parted(name),
        [f'{x:g}' for x in places],
        [
          (row.name, [f'{found[row.name][x]:.4g}' if x in found.get(row.name, ()) else '–' for x in places])
          for row in rows
        ],
      )


def template(name: str) -> jinja2.Template:
  """One of this folder."""
  environment = jinja2.Environment(
    autoescape=name.endswith('.html'), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
  )
  environment.filters['cell'] = lambda text: text.replace('|', r'\|')  # of a table of markdown
  return environment.from_string(
    importlib.resources.files('tfm.studies.report').joinpath(name).read_text('utf-8')
  )


def embedded(picture: Picture, width: float) -> markupsafe.Markup:
  return markupsafe.Markup(pictures.svg(picture.draw, width, picture.name))


def entry(rows: Sequence[Row]):
  """Row → the cells of the ranking, as text."""
  places = decimals(rows)

  def span(interval, sign=False):
    return '[{}, {}]'.format(*(number(x, places, sign) for x in interval)) if interval else '–'

  def cells(row):
    s, c = row.summary, row.comparison
    d = c.difference if c else None
    return dict(
      rank=str(row.rank or '–'),
      name=row.name,
      hue=palette.hue(row.place, row.base),
      n=str(len(row.values)),
      mean=number(s.mean, places) if s else '–',
      interval=span(s and s.interval),
      deviation=number(s.deviation, places) if s and s.deviation is not None else '–',
      difference=number(d.mean, places, sign=True) if d else '–',
      difference_interval=span(d and d.interval, sign=True),
      p=p_value(c.p) if d else '–',
      holm=p_value(c.corrected) if d else '–',
      verdict=row.verdict,
      reason=c.reason if c and not c.reason.startswith('p ') else '',
      notes=row.notes,
    )

  return cells


def reading(results: dict, rows: Sequence[Row]) -> list[str]:
  """What the figures are, in a sentence each: the noise floor, intervals, the test, and what means leave out."""
  study, places = results['study'], decimals(rows)
  found = []
  for base in (row for row in rows if row.base and row.summary):
    s = base.summary
    if s.deviation is not None:
      found.append(
        f'Noise floor: the {s.n} seeds of {base.name} have a standard deviation of {number(s.deviation, places)} '
        f'and range from {number(s.least, places)} to {number(s.most, places)}.'
      )
    else:
      found.append(f'Noise floor: unknown, as {base.name} finished with one seed.')
  fewest = min(len(row.values) for row in rows if row.summary)
  if fewest == 1:
    found.append('Intervals: one seed has none; of two or three seeds they are the range.')
  else:
    found.append(
      'Intervals: 95 % percentile bootstrap of the mean over seeds'
      + ('; of two or three seeds that is their range' if fewest <= 3 else '')
      + f'. With {fewest} seeds it holds the true mean {100 * statistics.coverage(fewest):.3g} % of the '
      'time at most.'
    )
  compared = [row.comparison for row in rows if row.comparison and row.comparison.difference]
  if compared:
    most = max(c.difference.n for c in compared)
    found.append(
      f'p: {"exact " * (most <= statistics.EXACT)}permutation test of the differences from {ranking.listed(bases(rows))}, '
      f'paired by seed, corrected by Holm for {count(len(compared), "comparison")}; a difference is shown '
      f'where p is at most {statistics.SIGNIFICANT}.'
    )
    least = min(c.reachable for c in compared)
    if least > statistics.SIGNIFICANT:
      found.append(
        'So few seeds cannot show a difference here, whatever its size: the least corrected p they can '
        f'reach is {p_value(least).removeprefix("p = ")}; {statistics.needed(len(compared))} seeds could.'
      )
  if study.get('jobs', 0) > 1:
    found.append(
      f'Up to {study["jobs"]} processes trained and measured at once on one machine: seconds and tokens/s are those of '
      'a machine that did other work.'
    )
  if any(len(row.values) < len(study['seeds']) for row in rows if row.begun):
    found.append(
      'Means are over the seeds that finished; an arm that lost its worst seeds looks better than it is.'
    )
  return found


def drawings(results: dict, rows: Sequence[Row]) -> Iterator[Picture]:
  """All pictures that the numbers allow."""
  study = results['study']
  metric = study['metric']
  label = f'{metric}, {"lower" if study["lower_is_better"] else "higher"} is better'
  of_base = len(bases(rows)) == 1 and any(row.base and row.summary and len(row.values) > 1 for row in rows)
  yield Picture(
    'ranking',
    sentence(f'{metric} of each arm'),
    'Strokes are seeds, the mark their mean, the bar its 95 % interval.'
    + (' The grey band is the range of the base, its noise.' if of_base else ''),
    lambda width: pictures.dots(rows, label, width),
  )
  for split in reversed(ranking.SPLITS):
    lines = pictures.traces(rows, ranking.curves(results, split), ranking.diverged(results))
    if lines:
      caption = f'{BAND} The first {pictures.START:.0%} of the steps are cut where they rise above the rest.'
      if any(line.low is None for line in lines):
        caption += ' A dotted line with a cross is a seed that diverged.'
      yield Picture(
        f'curves_{split}',
        f'{LOSSES[split]} loss',
        caption,
        lambda width, lines=lines, split=split: pictures.over(
          lines, f'{LOSSES[split].lower()} loss', 'step', width, cut=True
        ),
      )
  for name in ranking.metrics(results, by_x=True):
    lines = pictures.traces(rows, ranking.lines(results, name))
    if lines:
      quantity, along = parted(name)
      gone = unseen(results, name)
      caption = BAND + f' Not drawn, as not finite or diverged: {gone}.' * bool(gone)
      yield Picture(
        urllib.parse.quote(name, safe=''),
        sentence(name),
        caption,
        lambda width, lines=lines, quantity=quantity, along=along: pictures.over(
          lines,
          quantity,
          along,
          width,
          log=along == 'length' and min(line.x[0] for line in lines) > 0,
          marked=study.get('length') if along in ('length', 'position') else None,
        ),
      )
  for name, (along, cost) in costs(results, rows).items():
    yield Picture(
      f'cost_{urllib.parse.quote(name, safe="")}',
      sentence(f'{metric} against {along}'),
      'Mean and 95 % interval of each arm at its cost.',
      lambda width, cost=cost, along=along: pictures.scatter(rows, cost, label, along, width),
    )


def unseen(results: dict, name: str) -> str:
  """Whatever a metric with x lacks in its picture."""
  out = ranking.diverged(results)
  gone = {(v['arm'], v['seed']): [] for v in results['values']}
  for v in results['values']:
    if v['metric'] == name and (not ranking.finite(v['value']) or (v['arm'], v['seed']) in out):
      gone[v['arm'], v['seed']].append(f'{v["x"]:g}')
  return '; '.join(f'{arm}, seed {seed}, at {", ".join(xs)}' for (arm, seed), xs in gone.items() if xs)


def costs(results: dict, rows: Sequence[Row]) -> dict[str, tuple[str, dict[str, float]]]:
  """Name → its axis and the cost of each arm, of every cost that differs by more than EQUAL between arms that finished."""
  found = {
    key: (label, {arm['name']: arm[key] for arm in results['arms'] if arm.get(key) is not None})
    for key, label in COSTS.items()
  }
  for metric in results['study'].get('costs', ()):
    found[metric] = (
      metric.replace('_', ' '),
      {
        arm: sum(values.values()) / len(values)
        for arm, values in ranking.plain(results, metric).items()
        if values
      },
    )
  finished = {row.name for row in rows if row.summary}
  kept = {}
  for key, (label, of_arm) in found.items():
    values = [cost for arm, cost in of_arm.items() if arm in finished]
    if len(values) > 1 and max(values) > (1 + EQUAL) * min(values):
      kept[key] = (label, of_arm)
  return kept


def others(results: dict, rows: Sequence[Row]) -> dict | None:
  """The means of all other plain metrics, arm by arm, untested."""
  names = [name for name in ranking.metrics(results, by_x=False) if name != results['study']['metric']]
  columns = []
  for metric in names:
    of_arm = {
      arm: statistics.summary([*values.values()])
      for arm, values in ranking.plain(results, metric).items()
      if values
    }
    places = ranking.digits([*of_arm.values()]) if of_arm else 0
    columns.append(
      {
        arm: (number(s.mean, places), ' to '.join(number(x, places) for x in s.interval or ()))
        for arm, s in of_arm.items()
      }
    )
  return (
    dict(names=names, rows=[(row.name, [c.get(row.name, ('–', '')) for c in columns]) for row in rows])
    if names
    else None
  )


def setting(arm: dict) -> dict:
  """What an arm changes, what matching changed in it, what it costs, and the learning rate that was chosen, as text."""
  tried = arm.get('rates') or {}
  losses = {rate: 'diverged' for rate in tried.get('diverged', ())} | {
    rate: f'{loss:.4g}' for rate, loss in tried.get('reached', {}).items()
  }
  return dict(
    changes=[(path, repr(value)) for path, value in arm['changes'].items()],
    matched=[(path, repr(before), repr(after)) for path, (before, after) in arm['matched'].items()],
    costs=[
      (
        label,
        '–'
        if arm.get(key) is None
        else f'{arm[key]:,}'
        if key == 'parameters'
        else EngFormatter(places=2, sep=' ')(arm[key]),
      )
      for key, label in COSTS.items()
    ],
    rate='–' if arm.get('rate') is None else f'{arm["rate"]:g}',
    rates=[f'{rate}: {losses[rate]}' for rate in sorted(losses, key=float)],
  )


def chosen(text: dict) -> str:
  """The learning rate of a `setting`, and what each that was tried came to: '0.01 (0.001: 5.19, 0.01: 2.99)'."""
  return text['rate'] + f' ({", ".join(text["rates"])})' * bool(text['rates'])


def tried(results: dict) -> bool:
  """Whether learning rates were chosen."""
  return any(arm.get('rates') for arm in results['arms'])


def settings(results: dict, rows: Sequence[Row]) -> dict:
  """The arms as a table of a few columns, in the ranking's order."""
  match, numbers = results['study']['match'], ['parameters', 'training FLOPs per token']
  of_arms = {arm['name']: setting(arm) for arm in results['arms']}

  def cells(text):
    costs = dict(text['costs'])
    return [
      '<br>'.join(f'`{path}={value}`' for path, value in text['changes']) or 'nothing',
      *(
        ['<br>'.join(f'`{path}`: {a} → {b}' for path, a, b in text['matched']) or 'nothing'] if match else []
      ),
      *(costs[name] for name in numbers),
      *([chosen(text)] if tried(results) else []),
    ]

  columns = [
    'changes',
    *([f'matched in {match}'] if match else []),
    *numbers,
    *(['learning rate'] if tried(results) else []),
  ]
  return dict(columns=columns, rows=[(row.name, cells(of_arms[row.name])) for row in rows])


def facts(results: dict, rows: Sequence[Row]) -> list[tuple[str, str]]:
  """What stands at the head of the page."""
  study = results['study']
  return [
    (name, value)
    for name, value in (
      ('measured', f'{study["metric"]}, {"lower" if study["lower_is_better"] else "higher"} is better'),
      ('compared with', ranking.listed(bases(rows))),
      ('held equal', study['match'] or 'nothing by matching'),
      ('arms', f'{len(rows)}, of which {sum(row.summary is not None for row in rows)} finished'),
      ('seeds', ', '.join(map(str, study['seeds']))),
    )
    if value
  ]


def bases(rows: Sequence[Row]) -> list[str]:
  """The arms that others are compared with, in the study's order."""
  return list(dict.fromkeys(row.of for row in sorted(rows, key=lambda row: row.place) if row.of))


def made(study: dict) -> list[tuple[str, str]]:
  """How the study was made."""
  joined = {
    key: ', '.join(f'{name} {value}' for name, value in study[key].items())
    if isinstance(study.get(key), dict)
    else study.get(key)
    for key in ('versions', 'data')
  }
  seconds = study.get('seconds')
  return [
    (name, str(value))
    for name, value in (
      ('command', study.get('command')),
      ('machine', study.get('machine')),
      ('date', study.get('date')),
      ('report', study.get('written')),
      ('time', seconds is not None and str(datetime.timedelta(seconds=round(seconds)))),
      ('seeds', ', '.join(map(str, study['seeds']))),
      ('data', joined['data']),
      ('versions', joined['versions']),
    )
    if value
  ]


def linked(text: str) -> markupsafe.Markup:
  """Text with its addresses as links, which are followed only by a hand."""
  address = r'https?://[^\s<>&"\']+[^\s<>&"\'.,;)]'
  return markupsafe.Markup(re.sub(address, r'<a href="\g<0>">\g<0></a>', str(markupsafe.escape(text))))


def parted(name: str) -> tuple[str, str]:
  """'loss_at_length' → ('loss', 'length'): what is drawn, over what."""
  found = re.fullmatch(r'(.+)_(?:at|by)_(.+)', name)
  return (found[1].replace('_', ' '), found[2].replace('_', ' ')) if found else (name.replace('_', ' '), 'x')


def sentence(name: str) -> str:
  words = name.replace('_', ' ')
  return words[:1].upper() + words[1:]
