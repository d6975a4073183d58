"""The page as a browser shows it: laptop and phone, light and dark."""

import re
import shutil

import pytest

from tests.studies.report.made_up import results
from tfm.studies.report.page import write_report


SIZES = {'laptop': (1280, 800), 'phone': (390, 844)}
NAMES = 'chromium', 'chromium-browser', 'google-chrome', 'chrome'
LONG = 'a_name_that_is_longer_than_a_telephone_is_wide_' * 2
# WCAG 2.2, 1.4.3: the contrast of texts, of their own colour to that of the ground behind them.
CONTRASTS = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number)
  const light = text => {
    const [r, g, b] = parts(text).map(x => x / 255).map(
      x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const behind = element => {
    for (; element; element = element.parentElement) {
      const found = getComputedStyle(element).backgroundColor, alpha = parts(found)[3]
      if (alpha === undefined || alpha > 0) return found
    }
    return 'rgb(255, 255, 255)'
  }
  const seen = []
  for (const element of document.querySelectorAll(
    'h1, h2, h3, p, a, td, th, dd, dt, li, small, figcaption, pre, code')) {
    const box = element.getBoundingClientRect()
    if (!element.innerText || !element.innerText.trim() || box.width < 2 || box.height < 2) continue
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))]
    seen.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.innerText.slice(0, 60)])
  }
  return seen
}"""


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """A report with all that may stand in one: an arm that failed, one that diverged, and a long name."""
  study_results = results(
    {'rope': 0.0, LONG: -0.2, 'learned': 0.0, 'none': 0.4},
    seeds=range(4),
    diverged=dict(none=[1]),
    failed=dict(learned='ValueError: no position 1024'),
    costs=['accuracy'],
  )
  return write_report(study_results, tmp_path_factory.mktemp('study') / 'report')


@pytest.fixture(scope='module')
def browser():
  api = pytest.importorskip(
    'playwright.sync_api', reason="playwright is not installed; pip install -e '.[browser]'"
  )
  program = next(filter(None, map(shutil.which, NAMES)), None)
  if program is None:
    pytest.skip(f'no browser is installed: none of {", ".join(NAMES)} is there')
  with api.sync_playwright() as started:
    opened = started.chromium.launch(executable_path=program, args=['--no-sandbox'])
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('size', SIZES)
def test_the_page_is_readable(browser, page, size, scheme):
  width, height = SIZES[size]
  context = browser.new_context(
    viewport=dict(width=width, height=height), color_scheme=scheme, is_mobile=size == 'phone'
  )
  shown, printed, calls = context.new_page(), [], []
  shown.on('console', lambda message: printed.append(message.text))
  shown.on('pageerror', lambda error: printed.append(str(error)))
  shown.on('request', lambda request: calls.append(request.url))
  shown.goto(page.as_uri())
  assert not printed and calls == [page.as_uri()]  # it says nothing and fetches nothing
  assert shown.evaluate('document.documentElement.scrollWidth') == width  # nothing stands out at the side
  r, g, b = map(
    int, re.findall(r'\d+', shown.evaluate('getComputedStyle(document.body).backgroundColor'))[:3]
  )
  assert (min(r, g, b) > 230) if scheme == 'light' else (max(r, g, b) < 60)
  contrasts = shown.evaluate(CONTRASTS)
  assert len(contrasts) > 40 and min(contrasts)[0] >= 4.5, min(contrasts)
  # Of every picture the one of this width is shown, whole and of a size at which it can be read.
  figures = shown.locator('figure')
  assert figures.count() >= 3
  for figure in figures.all():
    boxes = [box for each in figure.locator('svg').all() if (box := each.bounding_box()) and box['width']]
    assert len(boxes) == 1 and boxes[0]['width'] >= 0.75 * min(width, 560) and boxes[0]['x'] >= 0
    assert boxes[0]['x'] + boxes[0]['width'] <= width
  shown.screenshot(path=page.parent / f'{size}-{scheme}.png', full_page=True)
  context.close()
