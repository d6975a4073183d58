"""What a run says of itself: metrics.jsonl, TensorBoard events, curves.png."""

import json
import pathlib

import matplotlib
import tensorboardX


matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402


class MetricsLog:
  """Writes metrics; opened at a step, it forgets what an interrupted run wrote beyond it."""

  def __init__(self, workdir: pathlib.Path, step: int):
    self.path = pathlib.Path(workdir) / 'metrics.jsonl'
    rows = [row for row in read(self.path) if row['step'] <= step]
    self.path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
    self.file = self.path.open('a')
    self.events = tensorboardX.SummaryWriter(str(workdir), purge_step=step + 1 if rows else None)

  def write(self, step: int, split: str, values: dict[str, float | str]) -> None:
    """One line: step, split and the values by name."""
    self.file.write(json.dumps(dict(step=step, split=split, **values)) + '\n')
    self.file.flush()
    for name, value in values.items():
      if not isinstance(value, str):
        self.events.add_scalar(f'{split}/{name}', value, step)

  def close(self) -> None:
    """Flushes everything and draws the curves."""
    self.file.close()
    self.events.close()
    draw_curves(self.path)


class NullMetricsLog:
  """The log of a process that does not write one."""

  def write(self, step: int, split: str, values: dict[str, float | str]) -> None:
    pass

  def close(self) -> None:
    pass


def read(path: pathlib.Path) -> list[dict]:
  """The rows of a metrics.jsonl; a last line cut off by a kill is left out.

  Raises:
    ValueError: naming the file and the line that is no row.
  """
  if not path.exists():
    return []
  rows = []
  for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
    if line.endswith(b'\n'):
      try:
        rows.append(json.loads(line))
        rows[-1]['step']  # by which all are looked up
      except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
          f'{path}:{number} is no line of metrics ({type(error).__name__}: {error}); the run can do without it: delete '
          'the line'
        ) from error
  return rows


def draw_curves(path: pathlib.Path) -> pathlib.Path:
  """Draws loss against step for every split, and the learning rate, into curves.png beside `path`."""
  rows = read(path)
  figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 1), layout='constrained'
  )
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
  plt.close(figure)
  return target
