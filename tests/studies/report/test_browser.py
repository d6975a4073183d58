"""The page as a browser shows it: laptop and phone, light and dark."""

import pytest

from tests.browser import SCHEMES, SIZES, assert_figures_fit, assert_readable, launch, open_tab
from tests.studies.report.made_up import results
from tfm.studies.report.page import write_report


LONG = 'a_name_that_is_longer_than_a_telephone_is_wide_' * 2


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
  with launch() as opened:
    yield opened


@pytest.mark.slow
@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('size', SIZES)
def test_the_page_is_readable(browser, page, size, scheme):
  with open_tab(browser, size, scheme) as tab:
    calls = []
    tab.on('request', lambda request: calls.append(request.url))
    tab.goto(page.as_uri())
    assert calls == [page.as_uri()]  # it fetches nothing
    assert_readable(tab, scheme, texts=41)
    assert_figures_fit(tab, least=3)
    tab.screenshot(path=page.parent / f'{size}-{scheme}.png', full_page=True)
