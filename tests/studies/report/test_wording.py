"""How numbers are written."""

from tfm.studies.report.wording import decimals_for, format_number
from tfm.studies.statistics.summary import Summary


def test_digits_show_two_of_the_deviation():
  def summaries(*deviations):
    return [Summary(3, 2.0, d, 1.0, 3.0, None) for d in deviations]

  assert [decimals_for(summaries(d)) for d in (12.0, 3.0, 0.5, 0.012, 0.0034)] == [0, 1, 2, 3, 4]
  assert decimals_for(summaries(0.01, 0.02, 5.0)) == 3
  # Of one seed each: two digits more than the spread of means needs, and of a lone mean three in all.
  one = [Summary(1, mean, None, mean, mean, None) for mean in (2.0, 2.3)]
  assert (decimals_for(one), decimals_for(one[:1])) == (3, 3)
  assert format_number(-0.12345, 3) == '−0.123' and format_number(0.5, 2, sign=True) == '+0.50'
  assert format_number(12345.6, 0) == '12,346'
