"""HTML and Markdown from the templates of a folder, which share those of this one: style.css, figure.html."""

import re

from tfm.errors import importing_extra
from tfm.studies.report import palette, plots
from tfm.studies.report.axes import NARROW, WIDE
from tfm.studies.report.plots import Plot


with importing_extra('ablation'):
  import jinja2
  import markupsafe

HERE = 'tfm.studies.report'


def load_template(name: str, package: str = HERE) -> jinja2.Template:
  """A Jinja template in the folder of a package."""
  environment = jinja2.Environment(
    loader=jinja2.ChoiceLoader([jinja2.PackageLoader(folder, '') for folder in (package, HERE)]),
    autoescape=jinja2.select_autoescape(['html']),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters['cell'] = lambda text: text.replace('|', r'\|')  # escapes a cell of a Markdown table
  environment.globals |= dict(light=palette.css_variables(False), dark=palette.css_variables(True))
  return environment.get_template(name)


def embed_figure(plot: Plot) -> dict[str, str]:
  """A plot for the macro of figure.html: its texts, and SVG for a laptop and for a phone."""
  wide, narrow = (
    markupsafe.Markup(plots.render_svg(plot.draw, width, plot.name)) for width in (WIDE, NARROW)
  )
  return dict(
    title=plot.title, caption=plot.caption, alt=f'{plot.title}. {plot.caption}', wide=wide, narrow=narrow
  )


def add_links(text: str) -> markupsafe.Markup:
  """Escaped text in which addresses are links."""
  address = r'https?://[^\s<>&"\']+[^\s<>&"\'.,;)]'
  return markupsafe.Markup(re.sub(address, r'<a href="\g<0>">\g<0></a>', str(markupsafe.escape(text))))
