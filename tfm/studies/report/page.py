"""A study's report: one HTML page that any browser shows offline, a Markdown version, CSV, JSON and PNG
plots.
"""

import csv
import json
import pathlib
from collections.abc import Sequence

from tfm.studies.report import figures, metric_tests, plots, sentences, tables
from tfm.studies.report.caveats import list_caveats
from tfm.studies.report.plots import Plot
from tfm.studies.report.ranking import Ranking, rank_arms
from tfm.studies.report.templates import add_links, embed_figure, load_template
from tfm.studies.report.values import metric_names
from tfm.studies.report.wording import join_names
from tfm.training.atomic_files import write_atomically


COLUMNS = ('arm', 'seed', 'metric', 'x', 'value')


def write_report(results: dict, directory: pathlib.Path) -> pathlib.Path:
  """Writes report.html, report.md, results.csv, results.json and a PNG for each plot; returns the page's
  path.

  results.csv has a row for each value, and the curves as the metrics `train_loss_at_step` and
  `validation_loss_at_step`.

  Args:
    results: study, arms, values and curves, as `tfm.studies.results_table` collects them. A study may give
      its training `length`, which plots mark, and as `costs` more metrics to plot quality against.

  Raises:
    ValueError: for invalid results; see `values.check_results`. Nothing is written then.
  """
  ranking = rank_arms(results)
  all_plots = list(figures.list_plots(results, ranking))
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  write_atomically(directory / 'results.json', json.dumps(results, ensure_ascii=False))
  with (directory / 'results.csv').open('w', newline='', encoding='utf-8') as file:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows([v[column] for column in COLUMNS] for v in results['values'])
    writer.writerows(
      (c['arm'], c['seed'], f'{c["split"]}_loss_at_step', c['step'], c['loss']) for c in results['curves']
    )
  for plot in all_plots:
    plots.save_png(plot.draw, directory / f'{plot.name}.png')
  write_atomically(directory / 'report.md', render_markdown(results, ranking, all_plots))
  page = directory / 'report.html'
  write_atomically(page, render_html(results, ranking, all_plots))
  return page


def render_html(results: dict, ranking: Ranking, all_plots: Sequence[Plot]) -> str:
  """The text of report.html, with all plots embedded."""
  study, arms = results['study'], {arm['name']: arm for arm in results['arms']}
  format_row, format_settings = tables.row_formatter(ranking), tables.settings_formatter(results, ranking)
  x_names = dict.fromkeys(figures.split_axis(name)[1] for name in metric_names(results, by_x=True))
  return load_template('page.html').render(
    study=study,
    answer=sentences.answer_question(results, ranking),
    facts=sentences.list_facts(results, ranking),
    explanations=sentences.explain_statistics(results, ranking),
    caveats=list_caveats(results, ranking),
    rows=[format_row(row) | dict(arm=arms[row.name]) | format_settings(row.name) for row in ranking.rows],
    figures={plot.name: embed_figure(plot) for plot in all_plots},
    x_names=join_names([*x_names]),
    has_rates=tables.has_selected_rates(results),
    rates=tables.tabulate_rates(results, ranking),
    scaling=tables.tabulate_scaling(results),
    multipliers=tables.tabulate_multipliers(results),
    targets=tables.tabulate_targets(results, ranking),
    suite=tables.tabulate_aggregates(results),
    published=tables.tabulate_published(results, ranking),
    is_solved=ranking.criterion.solved_at is not None,
    metric_tables=[*tables.tabulate_means(results, ranking)],
    other_metrics=tables.tabulate_other_metrics(results, ranking),
    legend=metric_tests.LEGEND,
    origin=sentences.list_origin(study),
    add_links=add_links,
  )


def render_markdown(results: dict, ranking: Ranking, all_plots: Sequence[Plot]) -> str:
  """The text of report.md: ranking, arms, means over x, origin, and the main plots."""
  columns, cells = tables.tabulate_ranking(results, ranking)
  shown = {
    'ranking',
    'scaling',
    'rates',
    'loss_at_length',
    *(f'cost_{cost}' for cost in results['study'].get('costs', ())),
  }
  return load_template('page.md').render(
    study=results['study'],
    answer=sentences.answer_question(results, ranking),
    explanations=sentences.explain_statistics(results, ranking),
    caveats=list_caveats(results, ranking),
    columns=columns,
    rows=cells,
    notes=tables.list_notes(ranking),
    arms=tables.tabulate_settings(results, ranking),
    plots=[plot for plot in all_plots if plot.name in shown],
    rates=tables.tabulate_rates(results, ranking),
    scaling=tables.tabulate_scaling(results),
    multipliers=tables.tabulate_multipliers(results),
    targets=tables.tabulate_targets(results, ranking),
    suite=tables.tabulate_aggregates(results),
    published=tables.tabulate_published(results, ranking),
    metric_tables=[*tables.tabulate_means(results, ranking)],
    other_metrics=tables.tabulate_other_metrics(results, ranking),
    legend=metric_tests.LEGEND,
    origin=sentences.list_origin(results['study']),
  )
