"""The pages of a board, their texts and pictures."""

import html.parser
import math
import re

import pytest

from tests.board.served import LONG, write_folder
from tests.runs.made_up import write_run
from tfm.board import pages
from tfm.board.curves import POINTS, plot_curves, read_curves, thin_out
from tfm.runs.lock import lock_workdir
from tfm.studies.report.ranking import Series


@pytest.fixture(scope='module')
def folder(tmp_path_factory, tiny):
  return write_folder(tmp_path_factory.mktemp('runs'), tiny)


class Page(html.parser.HTMLParser):
  """What a page holds: its texts, links by text, tags, and figures: title and the texts of both widths."""

  def __init__(self, text):
    super().__init__()
    self.texts, self.links, self.tags = [], {}, []
    self._open = []
    self.feed(text)
    self.figures = [
      (re.search('<h3>(.*?)</h3>', figure)[1], re.findall('<text[^>]*>([^<]*)</text>', figure))
      for figure in re.findall('<figure>.*?</figure>', text, re.DOTALL)
    ]

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    if tag == 'a':
      self._open.append(dict(attributes)['href'])

  def handle_data(self, text):
    if text.strip():
      self.texts.append(' '.join(text.split()))
      if self._open:
        self.links[self.texts[-1]] = self._open.pop()


def test_the_overview_lists_runs_with_what_differs(folder):
  page = Page(pages.render_overview(folder))
  at = page.texts.index('rope')
  assert page.texts[at : at + 6] == ['rope', 'finished', '40 of 40', '2.165', '40', 'nothing']
  at = page.texts.index('fast <b>')
  assert page.texts[at : at + 5] == ['fast <b>', 'diverged', '15 of 40', '3.434', '10']
  assert page.texts[at + 5] == 'optimizer.learning_rate = 1.0'
  assert "model.position = 'alibi'" in page.texts
  boxes = [attributes for tag, attributes in page.tags if attributes.get('type') == 'checkbox']
  assert [box['value'] for box in boxes] == [LONG, 'fast <b>', 'new', 'rope']
  assert page.links['fast <b>'] == 'run?run=fast+%3Cb%3E'


def test_the_overview_has_each_study_with_its_answer(folder):
  page = Page(pages.render_overview(folder))
  assert page.links['position'] == 'files/position/report.html'
  at = page.texts.index('position')
  assert page.texts[at + 1] == 'Which position reads on?' and 'alibi' in page.texts[at + 2]


def test_what_cannot_be_read_is_said(folder, tmp_path):
  assert any(
    text.startswith('left out:') and 'broken/metrics.jsonl:1 is not a row of metrics' in text
    for text in Page(pages.render_overview(folder)).texts
  )
  (tmp_path / 'study').mkdir()
  (tmp_path / 'study/results.json').write_text('{"study": {}}')
  (tmp_path / 'study/report.html').write_text('')
  page = Page(pages.render_overview(tmp_path))
  assert any('study/results.json cannot be read as the results of a study' in text for text in page.texts)


def test_a_run_shows_the_curves_of_a_metric(folder):
  page = Page(pages.render_run(folder, 'rope', 'loss'))
  [(title, texts)] = page.figures
  assert title == 'Loss' and {'train', 'validation', 'loss', 'step'} <= {*texts}
  tabs = {text: link for text, link in page.links.items() if 'metric=' in link}
  assert tabs == {name: f'?run=rope&metric={name}' for name in ('loss', 'learning_rate', 'perplexity')}
  [(title, texts)] = Page(pages.render_run(folder, 'rope', 'learning_rate')).figures
  assert title == 'Learning rate' and 'train' in texts and 'validation' not in texts


def test_a_run_has_its_state_its_config_and_its_files(folder):
  page = Page(pages.render_run(folder, 'rope', 'loss'))
  for words in (['state', 'finished'], ['step', '40 of 40'], ['at step', '40'], ['model.position', "'rope'"]):
    assert any(page.texts[i : i + 2] == words for i in range(len(page.texts))), words
  assert page.links['metrics.jsonl'] == 'files/rope/metrics.jsonl'
  diverged = Page(pages.render_run(folder, 'fast <b>', 'loss'))
  assert 'train loss is nan at step 16; that step is not saved' in diverged.texts
  assert 'No metrics yet.' in Page(pages.render_run(folder, 'new', 'loss')).texts


def refreshes(page):
  return any(attributes.get('http-equiv') == 'refresh' for _, attributes in page.tags)


def test_only_a_run_that_is_running_is_loaded_anew(folder):
  assert not refreshes(Page(pages.render_run(folder, 'new', 'loss')))
  with lock_workdir(folder / 'new'):
    assert refreshes(Page(pages.render_run(folder, 'new', 'loss')))


def test_the_folder_may_be_a_run(folder):
  assert pages.find_run(folder / 'rope', 'rope') == folder / 'rope'
  page = Page(pages.render_overview(folder / 'rope'))
  assert page.links['rope'] == 'run?run=rope'
  assert Page(pages.render_run(folder / 'rope', 'rope', 'loss')).links['config.json'] == 'files/config.json'


def test_a_comparison_ranks_runs_and_shows_what_differs(folder):
  names = ['fast <b>', LONG, 'rope', 'new', 'rope']  # the same run twice is one
  page = Page(pages.render_comparison(folder, names, 'loss'))
  assert [title for title, _ in page.figures] == ['Validation loss', 'Train loss']
  assert {'1 rope', '3 fast &lt;b&gt;'} <= {*page.figures[0][1]}
  ranked = [pair for pair in zip(page.texts, page.texts[1:]) if pair[1] in names]
  assert ranked == [('1', 'rope'), ('2', LONG), ('3', 'fast <b>'), ('–', 'new')]
  assert {'model.position', 'optimizer.learning_rate', "'alibi'", '1.0'} <= {*page.texts}
  assert 'A dotted line with a cross is a run that diverged.' in ' '.join(page.texts)
  assert any(text.startswith('tfm compare') for text in page.texts)


@pytest.mark.parametrize(
  'render, sentence',
  [
    (lambda folder: pages.render_run(folder, 'rpoe', 'loss'), "has no run 'rpoe'; .*did you mean 'rope'"),
    (lambda folder: pages.render_run(folder, 'rope', 'los'), "no metric 'los'; .*did you mean 'loss'"),
    (lambda folder: pages.render_run(folder, '../rope', 'loss'), "has no run '../rope'"),
    (lambda folder: pages.render_comparison(folder, [], 'loss'), 'no run is chosen'),
    (lambda folder: pages.render_overview(folder / 'nowhere'), 'nowhere is no folder'),
  ],
)
def test_what_there_is_not_is_a_sentence(folder, render, sentence):
  with pytest.raises(ValueError, match=sentence):
    render(folder)


def test_curves_have_finite_numbers_only(tmp_path, tiny):
  values = [dict(loss=math.nan), dict(loss=1.0, batch='text'), dict(loss=math.inf, tokens=3)]
  run = write_run(tmp_path / 'run', tiny(), [(i, 'train', value) for i, value in enumerate(values)])
  assert read_curves(run) == {'loss': {'train': {1: 1.0}}, 'tokens': {'train': {2: 3}}}


def test_of_many_points_some_are_drawn_and_the_last_always():
  assert thin_out({step: 0.0 for step in range(1, 11)}, 3) == {1: 0.0, 4: 0.0, 7: 0.0, 10: 0.0}
  curve = {step: 1 / step for step in range(1, 4 * POINTS)}
  plot = plot_curves([Series(None, 0, 'run')], {'run': curve}, 'train loss')
  assert plot.caption.startswith('One point of 4 is drawn.') and plot.name == 'train_loss'
  [line] = [line for line in plot.draw(6).axes[0].lines if len(line.get_xdata()) > 2]
  assert len(line.get_xdata()) == POINTS and line.get_xdata()[-1] == 4 * POINTS - 1
