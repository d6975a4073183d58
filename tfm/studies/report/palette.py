"""The report's colours, in light and in dark, and what tells one arm from another."""

import re


# Light and dark by name. The hues are told apart with any colour vision (after Okabe and Ito 2008), and by their marks
# and dashes beside; a picture is drawn in the light ones, which therefore differ from each other.
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
MARKS, DASHES = 'os^DvPX', ('-', (0, (5, 1.5)), (0, (1.5, 1.2)))


def hue(place: int, base: bool) -> str:
  """The colour of the arm at this place of the study, by name; the base's is the colour of no other."""
  return 'base' if base else HUES[place % len(HUES)]


def mark(place: int) -> str:
  return MARKS[place % len(MARKS)]


def dash(place: int):
  """Another for each round through the hues."""
  return DASHES[place // len(HUES) % len(DASHES)]


def variables(dark: bool) -> str:
  """CSS variables of all colours."""
  return ' '.join(f'--{name}: {pair[dark]};' for name, pair in COLOURS.items())


def themed(svg: str) -> str:
  """A picture's light colours as CSS variables, so that it follows the page into the dark."""
  names = {light: name for name, light in LIGHT.items()}
  return re.sub(
    r'#[0-9a-f]{6}\b', lambda found: f'var(--{names[found[0]]})' if found[0] in names else found[0], svg
  )
