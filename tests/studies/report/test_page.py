"""The report is complete and self-contained, and its tables can be read back."""

import configparser
import csv
import html.parser
import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from tests.studies.report.made_up import results
from tfm.studies.learning_rates import find_interval, find_optimum
from tfm.studies.report import axes, figures, metric_tests, palette, sentences, tables
from tfm.studies.report.caveats import list_caveats
from tfm.studies.report.page import write_report
from tfm.studies.report.ranking import rank_arms
from tfm.studies.report.tables import format_ranking
from tfm.studies.report.wording import first_line, format_number


TRICKY = '<b>"$x_1$"&|{{ study }}</b>'
ERROR = 'ValueError: no <position> 1024\n  at line 3'


class Read(html.parser.HTMLParser):
  """The elements of a page, and its text outside of style."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.text, self.open = [], '', []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    self.open.append(tag)

  def handle_endtag(self, tag):
    while self.open and self.open.pop() != tag:
      pass

  def handle_data(self, text):
    if 'style' not in self.open:
      self.text += text


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """(results, the page's path): an arm that failed, one that diverged, one with a name that is no HTML."""
  study_results = results(
    {'rope': 0.0, TRICKY: -0.2, 'learned': 0.0, 'none': 0.4},
    seeds=range(4),
    diverged=dict(none=[1]),
    failed=dict(learned=ERROR),
    costs=['accuracy'],
  )
  return study_results, write_report(study_results, tmp_path_factory.mktemp('study') / 'deep' / 'report')


@pytest.fixture(scope='module')
def page(written):
  return Read(written[1].read_text(encoding='utf-8'))


def test_the_templates_are_installed(root):
  setup = configparser.ConfigParser()
  setup.read(root / 'setup.cfg')
  assert setup['options.package_data']['tfm.studies.report'] == '*.css, *.html, *.md'


def test_the_markdown_has_every_arm_and_its_means(written):
  report, page = written
  text = (page.parent / 'report.md').read_text(encoding='utf-8')
  tables = [
    [[cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]] for line in part.splitlines()]
    for part in re.findall(r'(?:^\|.*\n)+', text, re.MULTILINE)
  ]
  assert all(len({*map(len, table)}) == 1 for table in tables)  # no cell of a name is taken for two
  ranking_, arms, targets, lengths, others, how = tables
  assert [row[1] for row in ranking_[2:]] == [row.name.replace('|', r'\|') for row in rank_arms(report).rows]
  assert targets[0] == ['arm', 'target', 'steps', 'training FLOPs', 'time']
  assert lengths[0] == ['arm', '64', '128', '256'] and others[0] == ['arm', 'accuracy (untested)']
  assert arms[0] == ['arm', 'changes', 'matched in parameters', 'parameters', 'training FLOPs per token']
  learned = next(row for row in arms if row[0] == 'learned')
  assert learned[1:4] == ["`model.position='learned'`", '`model.feed_forward`: 512 → 502', '1,041,216']
  assert report['study']['literature'] in text
  assert f'failed: {first_line(ERROR)}' in text and 'diverged at seed 1' in text
  for name in re.findall(r'\]\((.+)\)', text):
    assert (page.parent / name).exists()


def test_the_page_holds_every_arm_error_and_number(written, page):
  report, _ = written
  ranking = rank_arms(report)
  words = ' '.join(page.text.split())
  places = ranking.places
  for row in ranking.rows:
    assert row.name in words
    for note in row.notes:
      assert note in words
    if row.summary:
      for value in (row.summary.mean, *row.summary.interval, row.summary.deviation):
        assert format_number(value, places) in words
    if row.comparison:
      for value in (row.comparison.difference, *row.comparison.interval):
        assert format_number(value, places, sign=True) in words
      assert row.verdict in words and sentences.format_reason(row) in words
  for arm in report['arms']:
    assert f'{arm["parameters"]:,}' in words and f'model.position = {arm["name"]!r}' in words
    before, after = arm['matched']['model.feed_forward']
    assert f'model.feed_forward: {before} → {after}' in words
  assert ' '.join(ERROR.split()) in words
  study = report['study']
  for text in (
    study['question'],
    study['literature'],
    study['command'],
    study['machine'],
    'stdlib 3f2a9c81',
    'jax 0.10.2',
    study['date'],
    '0:01:23',
    'parameters',
    sentences.answer_question(report, ranking),
    *sentences.explain_statistics(report, ranking),
    *list_caveats(report, ranking),
    metric_tests.LEGEND,
  ):
    assert text in words
  others = tables.tabulate_other_metrics(report, ranking)['rows']
  for mean, _ in (cell for _, cells in others for cell in cells):
    assert mean in words
  for table in tables.tabulate_means(report, ranking):
    assert all(cell in words for _, cells in table.rows for cell in cells)


def test_the_page_loads_nothing(written, page):
  """Nothing is loaded: no script, link, image or style from elsewhere; and no name becomes an element."""
  fetching = {'src', 'srcset', 'data', 'poster', 'background', 'action'}
  for tag, attributes in page.tags:
    assert tag not in ('script', 'link', 'img', 'iframe', 'object', 'b') and not attributes.keys() & fetching
    for name in ('href', 'xlink:href'):
      if name in attributes:
        assert attributes[name].startswith('#') or (
          tag == 'a' and attributes[name] == 'https://arxiv.org/abs/2108.12409'
        )
  text = written[1].read_text(encoding='utf-8')
  assert not re.search(r'@import|url\((?!#)|xmlns|{{|{%', text.replace('{{ study }}', ''))
  assert ('meta', dict(name='viewport', content='width=device-width, initial-scale=1')) in page.tags


def test_plot_identifiers_are_unique(page):
  """An identifier stands once on the page, and whatever is referred to is there."""
  ids = [attributes['id'] for _, attributes in page.tags if 'id' in attributes]
  assert ids and len(ids) == len(set(ids))
  used = {attributes['xlink:href'][1:] for _, attributes in page.tags if 'xlink:href' in attributes}
  used |= {
    found
    for _, attributes in page.tags
    for found in re.findall(r'url\(#(\w+)\)', ' '.join(map(str, attributes.values())))
  }
  assert used and used <= set(ids)


def test_plots_follow_the_colour_scheme(written, page):
  """All their colours are variables that the page sets twice."""
  text = written[1].read_text(encoding='utf-8')
  drawn = ' '.join(
    attributes.get('style') or '' for tag, attributes in page.tags if tag in ('path', 'use', 'text', 'g')
  )
  assert not re.search(r'#[0-9a-f]{6}', drawn)
  assert set(re.findall(r'var\(--(\w+)\)', text)) <= set(palette.COLOURS)
  for dark in (False, True):
    assert palette.css_variables(dark) in text
  assert len(set(palette.LIGHT.values())) == len(palette.COLOURS)


def test_every_plot_exists_at_both_widths(written, page):
  _, path = written
  names = {
    'ranking',
    'curves_validation',
    'curves_train',
    'loss_at_length',
    'loss_by_position',
    'cost_parameters',
    'cost_tokens_per_second',
    'cost_accuracy',
  }
  # FLOPs are equal and memory is unknown: no axis.
  assert {file.stem for file in path.parent.glob('*.png')} == names
  assert sum(tag == 'svg' for tag, _ in page.tags) == 2 * len(names)
  for file in path.parent.glob('*.png'):
    pixels = imread(file)
    assert pixels.shape[1] == int(axes.WIDE * 144) and np.ptp(pixels[..., :3]) > 0.5


def test_json_is_the_results(written):
  report, path = written
  assert json.loads((path.parent / 'results.json').read_text(encoding='utf-8')) == json.loads(
    json.dumps(report)
  )


def test_csv_round_trips(written):
  report, path = written
  with (path.parent / 'results.csv').open(newline='', encoding='utf-8') as file:
    read = [*csv.DictReader(file)]
  values = [
    row | dict(seed=int(row['seed']), x=float(row['x']) if row['x'] else None, value=float(row['value']))
    for row in read
  ]
  assert values[: len(report['values'])] == report['values']
  assert values[len(report['values']) :] == [
    dict(arm=c['arm'], seed=c['seed'], metric=f'{c["split"]}_loss_at_step', x=c['step'], value=c['loss'])
    for c in report['curves']
  ]


def test_the_text_table(written):
  """A line for each arm, in their order, as it is named; then what is to be known of them."""
  report, _ = written
  ranking = rank_arms(report)
  text = format_ranking(report)
  lines = text.splitlines()
  assert lines[0] == sentences.answer_question(report, ranking)
  at = [
    next(i for i, line in enumerate(lines[1:]) if f' {row.name} ' in line and row.verdict in line)
    for row in ranking.rows
  ]
  assert at == sorted(at)
  assert 'learned: failed: ValueError: no <position> 1024' in lines and 'none: diverged at seed 1' in lines
  assert format_number(ranking.rows[0].summary.mean, ranking.places) in text
  assert all(line in lines for line in sentences.explain_statistics(report, ranking))


def with_rates(study_results):
  """The same with three rates of each arm: the best between others, at an end, beside one that diverged."""
  outcomes = dict(
    rope=({'0.001': 2.3, '0.003': 2.0, '0.01': 2.2}, {}),
    alibi=({'0.001': 2.3, '0.003': 2.1, '0.01': 2.0}, {}),
    none=({'0.001': 2.3, '0.003': 2.2}, {'0.01': 'nan'}),
  )
  study_results['study']['learning_rates'] = [0.001, 0.003, 0.01]
  for arm in study_results['arms']:
    reached, diverged = outcomes[arm['name']]
    rate = find_optimum({float(r): v for r, v in reached.items()}, (0.0003, 0.001, 0.003, 0.01), True).rate
    rungs = {'25': dict(reached={'0.0003': 3.0, '0.001': 2.5, '0.003': 2.4, '0.01': 2.6}, diverged={})}
    arm |= dict(rate=rate, rates=dict(reached=reached, diverged=diverged, rungs=rungs))
  return study_results


@pytest.mark.slow
def test_learning_rates_are_reported_with_all_candidates(tmp_path):
  study_results = with_rates(results(dict(rope=0.0, alibi=-0.3, none=0.1)))
  page = write_report(study_results, tmp_path)
  whole = ' '.join(Read(page.read_text(encoding='utf-8')).text.split())
  markdown = (tmp_path / 'report.md').read_text(encoding='utf-8')
  low, high = find_interval(
    {0.001: 2.3, 0.003: 2.0, 0.01: 2.2},
    (0.0003, 0.001, 0.003, 0.01),
    0.003,
    rank_arms(study_results).findings.analysis.floor,
  )
  rate = study_results['arms'][0]['rate']
  assert 0.003 < low < rate < high < 0.004
  expected = f'{rate:g} [{low:.2g}, {high:.2g}]'
  assert f'| {expected} |' in markdown and expected in whole
  heading = 'loss by learning rate, one run each (untested):\n\n'
  _, _, *rows = markdown.split(heading)[1].split('\n\n')[0].splitlines()
  assert markdown.split(heading)[1].startswith('| arm | 0.0003 | 0.001 | 0.003 | 0.01 |\n')
  assert rows == [
    '| alibi | dropped after 25 steps | 2.3000 | 2.1000 | 2.0000 |',
    '| rope | dropped after 25 steps | 2.3000 | 2.0000 | 2.2000 |',
    '| none | dropped after 25 steps | 2.3000 | 2.2000 | diverged |',
  ]
  assert 'nonedropped after 25 steps2.30002.2000diverged' in whole
  assert 'The best learning rate of alibi is the highest that was tried' in markdown
  assert '**Warning:** The best learning rate of alibi' in markdown and 'rates.png' in markdown
  # 2, 1, 3 beside 3, 1, 2 and beside 3, 2, 1: Spearman's 0.5 and -0.5.
  text = 'after 25 steps, which rank rates as what follows does with a correlation of 0.00 (Spearman'
  assert text in whole and (tmp_path / 'rates.png').exists()


def test_the_noise_floor_is_that_of_the_analysis_of_variance():
  study_results = results(dict(rope=0.0, alibi=-0.3))
  ranking = rank_arms(study_results)
  table = np.array([[row.values[seed] for seed in range(3)] for row in ranking.rows])
  residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
  floor, _, test, power_ = sentences.explain_statistics(study_results, ranking)
  assert (
    f'varies by {np.sqrt((residuals**2).sum() / 2):.4f} (standard deviation, pooled over 2 arms, 2' in floor
  )
  assert "Dunnett's test of 1 difference from rope, with seeds as blocks" in test
  assert power_.startswith('Power: with 3 seeds a difference of ')
  one = results(dict(rope=0.0, alibi=-0.3), seeds=[0])
  assert 'unknown' in sentences.explain_statistics(one, rank_arms(one))[0]


def test_two_seeds_cannot_show_that_spreads_differ():
  two = results(dict(rope=0.0, alibi=-0.3, none=0.1), seeds=range(2))
  explained = sentences.explain_statistics(two, rank_arms(two))
  assert any('2 seeds hardly show' in line and 'about 18 % of studies' in line for line in explained)


def test_other_metrics_are_tested_or_marked_untested(written):
  report, _ = written
  ranking = rank_arms(report)
  others = tables.tabulate_other_metrics(report, ranking)
  assert others['names'] == ['accuracy (untested)']  # the study calls it a cost
  (lengths,) = tables.tabulate_means(report, ranking)
  cells = dict(lengths.rows)
  assert lengths.cells == 'mean over seeds' and 'loss_by_position' not in lengths.metric
  assert all(cell.endswith(' ▼') for cell in cells[TRICKY]) and '▲' not in ''.join(cells['rope'])
  # Runs of none diverged, so that its mean is that of the luckier ones.
  assert not any(mark in cell for cell in cells['none'] for mark in '▲▼')
  tested = results(dict(rope=0.0, alibi=-0.3))
  others = tables.tabulate_other_metrics(tested, rank_arms(tested))
  assert others['names'] == ['accuracy'] and dict(others['rows'])['alibi'][0][0].endswith(' ▲')


def test_a_column_without_a_test_is_marked():
  """At 256 tokens one arm varies a hundred times as much, and four seeds allow no test of it."""
  study_results = results(dict(rope=0.0, alibi=-0.3, none=0.0), seeds=range(4))
  for v in study_results['values']:
    if (v['metric'], v['arm'], v['x']) == ('loss_at_length', 'rope', 256):
      v['value'] += v['seed']
  (table,) = tables.tabulate_means(study_results, rank_arms(study_results))
  assert table.columns == ['64', '128', '256 (untested)'] and table.cells == 'mean over seeds'


def test_each_x_has_its_share_of_the_error():
  """A difference that is shown at one length of one is not at one of three."""
  study_results = results(dict(rope=0.0, alibi=-0.009))
  study_results['values'] = [v for v in study_results['values'] if v['metric'] == 'loss_at_length']

  def findings(xs):
    values = [v for v in study_results['values'] if v['x'] in xs]
    tests = metric_tests.compare_by_x(study_results | dict(values=values), ranking)
    return {finding for finding in tests['loss_at_length'].findings.values()}

  ranking = rank_arms(results(dict(rope=0.0, alibi=-0.009)))
  assert 0.05 / 3 < ranking.rows[0].comparison.p < 0.05
  assert findings((64,)) == {'lower'} and findings((64, 128, 256)) == {'undecided'}


@pytest.mark.parametrize(
  'name, parts',
  [
    ('loss_at_length', ('loss', 'length')),
    ('loss_by_position', ('loss', 'position')),
    ('needle_at_512_by_depth', ('needle at 512', 'depth')),
    ('recall', ('recall', 'x')),
  ],
)
def test_a_metric_name_contains_its_axis(name, parts):
  assert figures.split_axis(name) == parts


def test_rejected_results_write_nothing(tmp_path):
  study_results = results(dict(rope=0.0), base='sine')
  for call in (
    lambda: write_report(study_results, tmp_path / 'study'),
    lambda: format_ranking(study_results),
  ):
    with pytest.raises(ValueError, match=r"study.base='sine' is not an arm"):
      call()
  assert not (tmp_path / 'study').exists()


def test_minimal_results(tmp_path):
  """One arm, one seed, no curve, nothing known of how."""
  fields = dict(
    study=dict(
      name='one',
      question='?',
      literature='',
      base='a',
      metric='loss',
      lower_is_better=True,
      match=None,
      seeds=[0],
    ),
    arms=[dict(name='a', changes={}, matched={}, error=None, diverged=[])],
    values=[dict(arm='a', seed=0, metric='loss', x=None, value=1.5)],
    curves=[],
  )
  page = Read(write_report(fields, tmp_path).read_text(encoding='utf-8'))
  assert '1.500' in page.text and [file.name for file in tmp_path.glob('*.png')] == ['ranking.png']
