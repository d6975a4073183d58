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
from tfm.studies.report import figures, palette, plots, ranking, sentences, tables
from tfm.studies.report.page import write_report
from tfm.studies.report.tables import format_ranking


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
  assert setup['options.package_data']['tfm.studies.report'] == '*.html, *.md'


def test_the_markdown_has_every_arm_and_its_means(written):
  report, page = written
  text = (page.parent / 'report.md').read_text(encoding='utf-8')
  tables = [
    [[cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]] for line in part.splitlines()]
    for part in re.findall(r'(?:^\|.*\n)+', text, re.MULTILINE)
  ]
  assert all(len({*map(len, table)}) == 1 for table in tables)  # no cell of a name is taken for two
  ranking_, arms, lengths, others, how = tables
  assert [row[1] for row in ranking_[2:]] == [
    row.name.replace('|', r'\|') for row in ranking.rank_arms(report)
  ]
  assert lengths[0] == ['arm', '64', '128', '256'] and others[0][:2] == ['arm', 'accuracy']
  assert arms[0] == ['arm', 'changes', 'matched in parameters', 'parameters', 'training FLOPs per token']
  learned = next(row for row in arms if row[0] == 'learned')
  assert learned[1:4] == ["`model.position='learned'`", '`model.feed_forward`: 512 → 502', '1,041,216']
  assert report['study']['literature'] in text
  assert f'failed: {ranking.first_line(ERROR)}' in text and 'diverged at seed 1' in text
  for name in re.findall(r'\]\((.+)\)', text):
    assert (page.parent / name).exists()


def test_the_page_holds_every_arm_error_and_number(written, page):
  report, _ = written
  rows = ranking.rank_arms(report)
  words = ' '.join(page.text.split())
  places = ranking.decimals(rows)
  for row in rows:
    assert row.name in words
    for note in row.notes:
      assert note in words
    if row.summary:
      for value in (row.summary.mean, *row.summary.interval, row.summary.deviation):
        assert ranking.format_number(value, places) in words
    if row.comparison:
      for value in (row.comparison.difference.mean, *row.comparison.difference.interval):
        assert ranking.format_number(value, places, sign=True) in words
      assert row.comparison.verdict in words and row.comparison.reason in words
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
    sentences.answer_question(report, rows),
    *sentences.explain_statistics(report, rows),
  ):
    assert text in words
  for mean, _ in (cell for _, cells in tables.tabulate_other_metrics(report, rows)['rows'] for cell in cells):
    assert mean in words


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
    assert pixels.shape[1] == int(plots.WIDE * 144) and np.ptp(pixels[..., :3]) > 0.5


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
  rows = ranking.rank_arms(report)
  text = format_ranking(report)
  lines = text.splitlines()
  assert lines[0] == sentences.answer_question(report, rows)
  at = [
    next(i for i, line in enumerate(lines[1:]) if f' {row.name} ' in line and row.verdict in line)
    for row in rows
  ]
  assert at == sorted(at)
  assert 'learned: failed: ValueError: no <position> 1024' in lines and 'none: diverged at seed 1' in lines
  assert ranking.format_number(rows[0].summary.mean, ranking.decimals(rows)) in text
  assert all(line in lines for line in sentences.explain_statistics(report, rows))


@pytest.mark.slow
def test_learning_rates_are_reported_with_all_candidates(tmp_path):
  study_results = results(dict(rope=0.0, alibi=-0.3, none=0.1))
  for arm, rate, reached in zip(
    study_results['arms'], (0.003, 0.01, 0.003), ((5.2, 2.5), (5.1, 2.25), (5.3, 2.75))
  ):
    arm |= dict(
      rate=rate, rates=dict(reached=dict(zip(('0.001', f'{rate:g}'), reached)), diverged={'0.03': 'nan'})
    )
  study_results['arms'][2]['rates'] = dict(reached={'0.003': 2.75, '0.001': 5.3}, diverged={})
  page = write_report(study_results, tmp_path)
  whole = ' '.join(Read(page.read_text(encoding='utf-8')).text.split())
  for text in (
    (tmp_path / 'report.md').read_text(encoding='utf-8'),
    ' '.join(format_ranking(study_results).split()),
  ):
    assert '0.003 (0.001: 5.2,' in text  # the terminal's table may break the line there
    assert 'none: the best learning rate is 0.003, at an end of (0.001, 0.003)' in text
    assert 'rope: the best' not in text and 'alibi: the best' not in text
  assert '0.003 (0.001: 5.2, 0.003: 2.5, 0.03: diverged)' in (tmp_path / 'report.md').read_text(
    encoding='utf-8'
  )
  assert '0.003: 2.5' in whole and '0.03: diverged' in whole and 'at an end of (0.001, 0.003)' in whole


def test_parallel_jobs_are_reported():
  study_results = results(dict(rope=0.0, alibi=-0.3), jobs=4)
  assert any(
    'Up to 4 processes' in line
    for line in sentences.explain_statistics(study_results, ranking.rank_arms(study_results))
  )
  study_results['study']['jobs'] = 1
  assert not any(
    'processes' in line
    for line in sentences.explain_statistics(study_results, ranking.rank_arms(study_results))
  )


def test_the_noise_floor_is_that_of_the_base():
  study_results = results(dict(rope=0.0, alibi=-0.3))
  rows = ranking.rank_arms(study_results)
  losses = [v['value'] for v in study_results['values'] if (v['arm'], v['metric']) == ('rope', 'loss')]
  floor = sentences.explain_statistics(study_results, rows)[0]
  for value in (np.std(losses, ddof=1), min(losses), max(losses)):
    assert f'{value:.4f}' in floor
  assert any('75 % of the time' in line for line in sentences.explain_statistics(study_results, rows))
  one = results(dict(rope=0.0, alibi=-0.3), seeds=[0])
  assert (
    'unknown, because rope finished with one seed'
    in sentences.explain_statistics(one, ranking.rank_arms(one))[0]
  )


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
