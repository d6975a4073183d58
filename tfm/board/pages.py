"""The pages of a board: each the text of an HTML page about the runs and studies of a folder.

All raise ValueError for a run or a metric that there is not, and for a file that cannot be read.
"""

import pathlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from tfm.board.curves import Curve, plot_curves, read_curves
from tfm.errors import parsing, read_json_object, require, suggest
from tfm.runs import lock
from tfm.runs.summary import (
  RunSummary,
  find_run_dirs,
  list_changes,
  summarize_run,
  summarize_runs,
  walk_folders,
)
from tfm.studies.report import palette, ranking, sentences
from tfm.studies.report.plots import Plot
from tfm.studies.report.ranking import Series
from tfm.studies.report.templates import embed_figure, load_template


# What the page of a run says first, and its words for it.
FACTS = dict(state='state', step='step', loss='best loss', at='at step')


def render(template: str, **values: Any) -> str:
  """A page of one of this folder's templates."""
  return load_template(template, 'tfm.board').render(**values)


def render_overview(folder: pathlib.Path) -> str:
  """The studies of a folder, and its runs, to open or to compare."""
  runs, unreadable = summarize_runs(folder)
  return render(
    'overview.html',
    title=str(folder),
    studies=[*list_studies(folder)],
    runs=[
      describe_run(folder, run) | dict(changes=[f'{path} = {value!r}' for path, value in changes.items()])
      for run, changes in zip(runs, list_changes(runs))
    ],
    notices=unreadable,
  )


def render_run(folder: pathlib.Path, name: str, metric: str) -> str:
  """One run: how far it is, the curves of a metric, its files and its config."""
  workdir = find_run(folder, name)
  run, curves = summarize_run(workdir), read_curves(workdir)
  described = describe_run(folder, run)
  return render(
    'run.html',
    title=name,
    run=run,
    facts=[(label, described[key]) for key, label in FACTS.items()],
    fields=[(path, repr(value)) for path, value in run.fields.items()],
    has_target=run.fields.get('model.architecture') == 'encoder_decoder',
    files=[
      (str(path.relative_to(workdir)), link_file(folder, path))
      for path in [*sorted(workdir.iterdir()), *workdir.glob('attention/index.html')]
      if path.is_file() and path.name != lock.FILE
    ],
    tabs=list_tabs(curves, metric, [name]),
    plots=embed_plots([plot_splits(curves[metric], metric)] if curves else []),
  )


def render_comparison(folder: pathlib.Path, names: Sequence[str], metric: str) -> str:
  """Several runs: their curves of a metric, and the config fields in which they differ.

  The best loss ranks them.
  """
  require(bool(names), 'no run is chosen; tick some of the runs')
  runs = [summarize_run(find_run(folder, name)) for name in dict.fromkeys(names)]
  names = [name_of(folder, run.workdir) for run in runs]
  losses = sorted(run.best[1] for run in runs if run.best)
  series = [
    Series(run.best and losses.index(run.best[1]) + 1, i, name)
    for i, (name, run) in enumerate(zip(names, runs))
  ]
  curves = merge_curves({name: read_curves(run.workdir) for name, run in zip(names, runs)})
  paths = dict.fromkeys(path for changes in list_changes(runs) for path in changes)
  diverged = {name for name, run in zip(names, runs) if run.state == 'diverged'}
  return render(
    'compare.html',
    title=f'{len(names)} runs',
    paths=paths,
    runs=[
      describe_run(folder, run)
      | dict(
        hue=palette.hue(each.index, each.is_base),
        rank=each.rank or '–',
        fields=[(path, repr(run.fields.get(path))) for path in paths],
      )
      for each, run in sorted(zip(series, runs), key=lambda pair: pair[0].rank or len(runs) + 1)
    ],
    command=shlex.join(['tfm', 'compare', *(str(run.workdir) for run in runs), f'--to={folder}/comparison']),
    tabs=list_tabs(curves, metric, names),
    plots=embed_plots(
      plot_curves(series, of_run, f'{split} {metric}', diverged)
      for split, of_run in sort_splits(curves.get(metric, {}))
    ),
  )


def render_message(title: str, text: str) -> str:
  """A page with a sentence."""
  return render('message.html', title=title, text=text)


def list_studies(folder: pathlib.Path) -> Iterator[dict[str, str]]:
  """The reports in a folder: name, link, question and answer; of one that cannot be read, the reason."""
  for path in walk_folders(folder):
    file = path / 'results.json'
    if not (file.is_file() and (path / 'report.html').is_file()):
      continue
    study = dict(name=name_of(folder, path), link=link_file(folder, path / 'report.html'), question='')
    try:
      with parsing(file, 'the results of a study'):
        results = read_json_object(file)
        answer = sentences.answer_question(results, ranking.rank_arms(results))
        study |= dict(question=results['study']['question'], answer=answer)
    except ValueError as error:
      study |= dict(answer=str(error))
    yield study


def describe_run(folder: pathlib.Path, run: RunSummary) -> dict[str, str]:
  """What the pages say about a run in a table."""
  at, loss = (f'{run.best[0]:,}', f'{run.best[1]:.4g}') if run.best else ('–', '–')
  name = name_of(folder, run.workdir)
  return dict(
    name=name,
    link=f'run?{urlencode(dict(run=name))}',
    state=run.state,
    step=f'{run.step:,} of {run.steps:,}',
    loss=loss,
    at=at,
  )


def find_run(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The folder of the run that has a name."""
  found = {name_of(folder, workdir): workdir for workdir in find_run_dirs(folder)}
  require(name in found, f'{folder} has no run {name!r}; {suggest(name, found)}')
  return found[name]


def name_of(folder: pathlib.Path, path: pathlib.Path) -> str:
  """The name of a run or a study: where it is in the folder; of the folder itself, its own name."""
  return str(path.relative_to(folder)) if path != folder else folder.resolve().name


def link_file(folder: pathlib.Path, path: pathlib.Path) -> str:
  """The address of a file."""
  return quote(f'files/{path.relative_to(folder).as_posix()}')


def merge_curves(
  of_run: Mapping[str, Mapping[str, Mapping[str, Curve]]],
) -> dict[str, dict[str, dict[str, Curve]]]:
  """Run → metric → split → curve, as metric → split → run → curve."""
  merged = {}
  for run, curves in of_run.items():
    for metric, of_split in curves.items():
      for split, curve in of_split.items():
        merged.setdefault(metric, {}).setdefault(split, {})[run] = curve
  return merged


def list_tabs(metrics: Iterable[str], shown: str, names: Sequence[str]) -> list[tuple[str, str, bool]]:
  """(metric, address, whether it is shown) of each metric of some runs."""
  metrics = [*metrics]
  require(not metrics or shown in metrics, f'there is no metric {shown!r}; {suggest(shown, metrics)}')
  return [
    (metric, '?' + urlencode([*(('run', name) for name in names), ('metric', metric)]), metric == shown)
    for metric in metrics
  ]


def plot_splits(of_split: Mapping[str, Curve], metric: str) -> Plot:
  """The curves of a metric of one run, a line for each split."""
  curves = dict(sort_splits(of_split))
  return plot_curves([Series(None, i, split) for i, split in enumerate(curves)], curves, metric)


def sort_splits(of_split: Mapping[str, Any]) -> list[tuple[str, Any]]:
  """The splits and what belongs to each: validation first, as it is what counts."""
  return sorted(of_split.items(), reverse=True)


def embed_plots(plots: Iterable[Plot]) -> list[dict[str, str]]:
  """Plots for a template."""
  return [*map(embed_figure, plots)]
