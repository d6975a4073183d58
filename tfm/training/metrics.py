"""The metrics of a run: metrics.jsonl, the sinks that the config names, curves.png."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.errors import MissingExtra, importing_extra, parse_json, require, writing
from tfm.spec import NonNegativeInt, shorten, unsuitable_reason
from tfm.training.atomic_files import write_atomically
from tfm.training.progress_line import print_status
from tfm.training.sinks.protocol import LoggedRun, Sink


# The fields of a row that are texts: the hash of the batch of a step, and why a run diverged. Metrics are
# numbers, also infinite and undefined ones.
TEXTS = 'split', 'batch', 'diverged'


class MetricsLog:
  """Writes metrics. Opened at a step, it deletes the rows that an interrupted run wrote after it.

  Args:
    workdir: the folder of the run.
    step: where the process starts.
    sinks: get every number, too. One that fails is left out from then on, as a message says: metrics.jsonl
      has all.
    config: path → value of every field, for the sinks.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, sinks: Sequence[Sink] = (), config: Mapping[str, object] = {}
  ):
    self.workdir = pathlib.Path(workdir)
    self.path = self.workdir / 'metrics.jsonl'
    rows = [row for row in read(self.path) if row['step'] <= step]
    if self.path.exists():
      write_atomically(self.path, ''.join(f'{json.dumps(row)}\n' for row in rows))
    self.file = self.path.open('a', encoding='utf-8')
    logged = LoggedRun(self.workdir, config, step)
    self._writers = {sink: sink.open(logged) for sink in sinks}

  def write(self, step: int, split: str, values: dict[str, float | str]) -> dict[str, float | str | int]:
    """One line, which is returned: step, split and the values by name, which are texts only for `TEXTS`."""
    row = dict(step=step, split=split, **values)
    with writing(self.path, 'free some space and run the command again'):
      self.file.write(json.dumps(row) + '\n')
      self.file.flush()
    numbers = {f'{split}/{name}': value for name, value in values.items() if not isinstance(value, str)}
    self._call_writers(lambda writer: writer.write(step, numbers))
    return row

  def close(self) -> None:
    """Flushes everything and draws the curves."""
    self._call_writers(lambda writer: writer.close())
    with writing(self.path, 'free some space and run the command again'):
      self.file.close()
      try:
        draw_curves(self.path)
      except MissingExtra as error:
        print_status(f'no curves.png: {error}')

  def _call_writers(self, call) -> None:
    for sink, writer in tuple(self._writers.items()):
      try:
        call(writer)
      except Exception as error:  # of libraries that talk to servers; no run may end because of one
        del self._writers[sink]
        print_status(
          f'{sink} fails and gets no more metrics ({type(error).__name__}: {error}); {self.path} has all'
        )


class NullMetricsLog:
  """The log of a process other than the main one: it writes nothing."""

  def __init__(self, workdir: pathlib.Path):
    self.workdir = workdir

  def write(self, step: int, split: str, values: dict[str, float | str]) -> dict[str, float | str | int]:
    return dict(step=step, split=split, **values)

  def close(self) -> None:
    pass


def read(path: pathlib.Path) -> list[dict]:
  """Reads the rows of a metrics.jsonl, without an incomplete last line (after a kill).

  Raises:
    ValueError: naming the file and the line that is not a row.
  """
  return parse_rows(path, path.read_bytes()) if path.exists() else []


def read_validations(workdir: pathlib.Path, step: int) -> list[dict]:
  """The rows of a run's validations up to a step."""
  rows = read(workdir / 'metrics.jsonl')
  return [
    row for row in rows if row['split'] == 'validation' and row['step'] <= step and 'diverged' not in row
  ]


def parse_rows(path: pathlib.Path, content: bytes, first: int = 1) -> list[dict]:
  """The rows of a part of a metrics.jsonl that starts with the line `first`; see `read`."""
  rows = []
  for number, line in enumerate(content.splitlines(keepends=True), start=first):
    if line.endswith(b'\n'):
      try:
        rows.append(parse_json(line))
        check_row(rows[-1])
      except ValueError as error:
        raise ValueError(
          f'{path}:{number} is not a row of metrics ({error}); delete the line, which the run does not need'
        ) from error
  return rows


def check_row(row: Any) -> None:
  """Raises ValueError for what is not a row as `MetricsLog.write` writes it, naming the field."""
  require(isinstance(row, dict), f'it is a {type(row).__name__}, not an object')
  for name, kind in (('step', NonNegativeInt), ('split', str)):
    require(name in row, f'{name} is missing')
    reason = unsuitable_reason(row[name], kind)
    require(not reason, f'{name}={shorten(row[name])} {reason}')
  for name, value in row.items():
    kind, noun = (str, 'text') if name in TEXTS else (int | float, 'number')
    if not isinstance(value, kind) or isinstance(value, bool):
      raise ValueError(f'{name}={shorten(value)} is not a {noun}')


def draw_curves(path: pathlib.Path) -> pathlib.Path:
  """Draws loss against step for every split, and the learning rate, into curves.png beside `path`."""
  with importing_extra('plots'):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
  rows = read(path)
  figure = Figure(figsize=(8, 6), layout='constrained')
  FigureCanvasAgg(figure)
  top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  for split, style in (('train', dict(lw=1, alpha=0.7)), ('validation', dict(lw=2, marker='o', ms=4))):
    points = [(row['step'], row['loss']) for row in rows if row['split'] == split and 'loss' in row]
    if points:
      top.plot(*zip(*points), label=f'{split} ({points[-1][1]:.3f})', **style)
  rates = [(row['step'], row['learning_rate']) for row in rows if 'learning_rate' in row]
  if rates:
    bottom.plot(*zip(*rates), lw=1, color='gray')
  top.set(ylabel='loss (nats per token)')
  if top.lines:
    top.legend()
  bottom.set(ylabel='learning rate', xlabel='step')
  for axes in (top, bottom):
    axes.grid(alpha=0.3)
  target = path.parent / 'curves.png'
  figure.savefig(target, dpi=120)
  return target
