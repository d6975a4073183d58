"""A board as a browser shows it: laptop and phone, light and dark; one run was trained, for its attention."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.board.served import LONG, serving, write_folder
from tests.browser import SCHEMES, SIZES, assert_figures_fit, assert_readable, launch, open_tab
from tfm.runs.train import train


pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def folder(tmp_path_factory, tiny):
  folder = write_folder(tmp_path_factory.mktemp('runs'), tiny)
  train(tiny(), folder / 'trained')
  train(tiny(**{'model.mixer': 'mamba', 'model.position': 'none'}), folder / 'mamba')
  return folder


@pytest.fixture(scope='module')
def address(folder):
  with serving(folder) as address:
    yield address


@pytest.fixture(scope='module')
def browser():
  with launch() as opened:
    yield opened


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('size', SIZES)
def test_from_the_overview_to_each_page(browser, address, folder, size, scheme):
  with open_tab(browser, size, scheme) as tab:
    calls = []
    tab.on('request', lambda request: calls.append(request.url))
    tab.goto(address)
    assert_readable(tab, scheme, texts=20)
    for name in ('rope', LONG, 'fast <b>'):
      tab.get_by_label(f'compare {name}', exact=True).check()
    tab.get_by_role('button', name='Compare the chosen runs').click()
    assert tab.locator('h1').inner_text() == '3 runs'
    assert_readable(tab, scheme, texts=20)
    assert_figures_fit(tab, least=2)
    tab.get_by_role('link', name='perplexity').click()
    assert tab.locator('h3').all_inner_texts() == ['Validation perplexity']
    tab.get_by_role('link', name='fast <b>').click()
    assert_figures_fit(tab, least=1)
    assert_readable(tab, scheme, texts=20)
    tab.get_by_text('every field').click()
    assert_readable(tab, scheme, texts=100)
    tab.get_by_role('link', name='all runs').click()
    tab.get_by_role('link', name='position', exact=True).click()
    assert tab.locator('h1').inner_text() == 'Which position reads on?'
    assert all(url.startswith(address) for url in calls)  # nothing comes from elsewhere


def test_the_attention_of_a_text(browser, address):
  with open_tab(browser, 'phone', 'light') as tab:
    tab.goto(f'{address}run?run=trained')
    tab.get_by_label('a text', exact=True).fill('Now <b>')
    tab.get_by_role('button', name='Show the attention').click()
    assert tab.locator('#title').inner_text() == 'Attention of trained, step 6'
    assert tab.get_by_label('layer 1, head 3').count() == 1
    assert tab.evaluate('document.documentElement.scrollWidth') == tab.viewport_size['width']


@pytest.mark.parametrize(
  'query, sentence',
  [
    ('run=mamba&text=a', 'mamba has no attention weights'),
    ('run=trained&text=' + 'a' * 600, 'a map shows at most 512'),
    ('run=trained&text=a&target=b', 'a target requires an encoder-decoder'),
  ],
)
def test_what_has_no_attention_says_why(browser, address, query, sentence):
  context = browser.new_context()
  tab = context.new_page()
  assert tab.goto(f'{address}attention?{query}').status == 400
  assert sentence in tab.locator('main').inner_text()
  context.close()


def test_the_command_prints_an_address_and_ends_with_ctrl_c(browser, folder):
  process = subprocess.Popen(
    [sys.executable, '-m', 'tfm', 'board', str(folder), '--port=0'],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | dict(JAX_PLATFORMS='cpu'),
  )
  address = re.fullmatch(r'(http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n', process.stdout.readline())[1]
  with open_tab(browser, 'laptop', 'light') as tab:
    tab.goto(address)
    assert tab.locator('h1').inner_text() == str(folder)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
  # JAX's own libraries may log to stderr.
  assert (process.returncode, out) == (0, '') and 'Traceback' not in err, err
