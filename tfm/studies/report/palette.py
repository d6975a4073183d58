"""The report's colours for the light and the dark scheme, and the marker and dash of each arm."""

import re


# Name → (light, dark). The hues can be distinguished with any colour vision (after Okabe and Ito 2008), and
# arms also differ in markers and dashes. Plots are drawn in the light colours, each of which is unique, and
# recoloured by name.
COLOURS = {
  'ground': ('#ffffff', '#12161b'),
  'panel': ('#f6f8fa', '#1a2027'),
  'ink': ('#1f2933', '#e4e8ee'),
  'faint': ('#5b6774', '#9aa5b1'),
  'line': ('#c3cad3', '#3a444f'),
  'grid': ('#e4e8ee', '#262e37'),
  'good': ('#0b6b4d', '#4fd1a5'),
  'bad': ('#b3261e', '#ff8a80'),
  'base': ('#3d4750', '#d5dbe2'),
  'arm0': ('#0072b2', '#4db1f0'),
  'arm1': ('#d55e00', '#ff8f4a'),
  'arm2': ('#009e73', '#2fcf9f'),
  'arm3': ('#c25594', '#f0a3cf'),
  'arm4': ('#b08900', '#f2cf4d'),
  'arm5': ('#3fa3dc', '#9adcff'),
  'arm6': ('#882255', '#d9739f'),
  'arm7': ('#6f7f1c', '#bfd05f'),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
HUES = [name for name in COLOURS if re.fullmatch(r'arm\d', name)]
MARKERS, DASHES = 'os^DvPX', ('-', (0, (5, 1.5)), (0, (1.5, 1.2)))


def hue(index: int, base: bool) -> str:
  """The name of the colour of the arm at an index of the study; the base has a colour of its own."""
  return 'base' if base else HUES[index % len(HUES)]


def marker(index: int) -> str:
  """The Matplotlib marker of the arm at an index of the study."""
  return MARKERS[index % len(MARKERS)]


def dash(index: int):
  """The Matplotlib dash pattern; another one each time the hues repeat."""
  return DASHES[index // len(HUES) % len(DASHES)]


def css_variables(dark: bool) -> str:
  """CSS variables of all colours of a scheme."""
  return ' '.join(f'--{name}: {pair[dark]};' for name, pair in COLOURS.items())


def use_css_variables(svg: str) -> str:
  """Replaces light colours by CSS variables, so that a plot follows the page's colour scheme."""
  names = {light: name for name, light in LIGHT.items()}
  return re.sub(
    r'#[0-9a-f]{6}\b', lambda match: f'var(--{names[match[0]]})' if match[0] in names else match[0], svg
  )
