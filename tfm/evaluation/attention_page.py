"""Attention maps as an HTML page: one file for any browser, offline, to view head by head."""

import base64
import importlib.resources
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from tfm.evaluation.attention_maps import AttentionMaps


# The value of weight 1; the rounding error of a weight is at most 0.5 / LEVELS.
LEVELS = 2**16 - 1


def write_page(maps: Sequence[AttentionMaps], title: str, file: str | pathlib.Path) -> None:
  """Writes the page of the maps of all kinds."""
  pathlib.Path(file).write_text(render_page(maps, title), encoding='utf-8')


def render_page(maps: Sequence[AttentionMaps], title: str) -> str:
  """attention_page.html with the maps of all kinds."""
  template = importlib.resources.files('tfm.evaluation').joinpath('attention_page.html').read_text('utf-8')
  data = json.dumps(dict(title=title, levels=LEVELS, kinds=[pack_maps(m) for m in maps]), ensure_ascii=False)
  # Escaping '<' prevents tokens from ending the script element or starting a comment.
  return template.replace('{{data}}', data.replace('<', r'\u003c'))


def pack_maps(maps: AttentionMaps) -> dict:
  """One kind as JSON: its weights concatenated by layer and head, in 16 bits each."""
  weights = np.stack([weights for of_layer in maps.layers.values() for weights in of_layer.values()])
  levels = np.round(weights.clip(0, 1) * LEVELS).astype('<u2')
  return dict(
    kind=maps.kind,
    queries=list(maps.queries),
    keys=list(maps.keys),
    layers=[[layer, list(of_layer)] for layer, of_layer in maps.layers.items()],
    weights=base64.b64encode(levels.tobytes()).decode(),
  )
