"""An installed browser, laptop and phone, light and dark, and what makes a page readable there."""

import contextlib
import re
import shutil

import pytest


SIZES = {'laptop': (1280, 800), 'phone': (390, 844)}
SCHEMES = 'light', 'dark'
NAMES = 'chromium', 'chromium-browser', 'google-chrome', 'chrome'
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


@contextlib.contextmanager
def launch():
  """A block with a browser; skips the test where there is none."""
  api = pytest.importorskip(
    'playwright.sync_api', reason="playwright is not installed; pip install -e '.[browser]'"
  )
  program = next(filter(None, map(shutil.which, NAMES)), None)
  if program is None:
    pytest.skip(f'no browser is installed: none of {", ".join(NAMES)} is there')
  with api.sync_playwright() as started:
    browser = started.chromium.launch(executable_path=program, args=['--no-sandbox'])
    yield browser
    browser.close()


@contextlib.contextmanager
def open_tab(browser, size, scheme):
  """A block with a tab of a size and a colour scheme; at its end the pages must have printed nothing."""
  width, height = SIZES[size]
  context = browser.new_context(
    viewport=dict(width=width, height=height), color_scheme=scheme, is_mobile=size == 'phone'
  )
  tab, printed = context.new_page(), []
  tab.on('console', lambda message: printed.append(message.text))
  tab.on('pageerror', lambda error: printed.append(str(error)))
  yield tab
  assert not printed
  context.close()


def assert_readable(tab, scheme, texts):
  """Fails if the page stands out at the side, has the other scheme, few texts, or one of low contrast."""
  assert tab.evaluate('document.documentElement.scrollWidth') == tab.viewport_size['width']
  background = tab.evaluate('getComputedStyle(document.body).backgroundColor')
  r, g, b = map(int, re.findall(r'\d+', background)[:3])
  assert (min(r, g, b) > 230) if scheme == 'light' else (max(r, g, b) < 60)
  contrasts = tab.evaluate(CONTRASTS)
  assert len(contrasts) >= texts and min(contrasts)[0] >= 4.5, min(contrasts)


def assert_figures_fit(tab, least):
  """Fails unless of every figure the picture of this width is shown, whole and of a size to be read."""
  width, figures = tab.viewport_size['width'], tab.locator('figure')
  assert figures.count() >= least
  for figure in figures.all():
    boxes = [box for each in figure.locator('svg').all() if (box := each.bounding_box()) and box['width']]
    assert len(boxes) == 1 and boxes[0]['width'] >= 0.75 * min(width, 560) and boxes[0]['x'] >= 0
    assert boxes[0]['x'] + boxes[0]['width'] <= width
