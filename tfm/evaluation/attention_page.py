"""Attention maps as a page: one file that any browser opens, offline, to look at one head after another."""

import base64
import importlib.resources
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from tfm.evaluation.attention import Maps


# The weight 1; a weight is kept to half of 1 / LEVELS.
LEVELS = 2**16 - 1


def write(maps: Sequence[Maps], title: str, file: str | pathlib.Path) -> None:
  """Writes attention_page.html with the maps of all kinds in it."""
  template = importlib.resources.files('tfm.evaluation').joinpath('attention_page.html').read_text('utf-8')
  data = json.dumps(dict(title=title, levels=LEVELS, kinds=[packed(m) for m in maps]), ensure_ascii=False)
  # In a script element only '<' can end the script or begin a comment, whatever a token is.
  pathlib.Path(file).write_text(template.replace('{{data}}', data.replace('<', r'\u003c')), encoding='utf-8')


def packed(maps: Maps) -> dict:
  """One kind for the page: its weights one after another, layer by layer and head by head, in 16 bits each."""
  weights = np.stack([weights for of_layer in maps.layers.values() for weights in of_layer.values()])
  whole = np.round(weights.clip(0, 1) * LEVELS).astype('<u2')
  return dict(
    kind=maps.kind,
    queries=list(maps.queries),
    keys=list(maps.keys),
    layers=[[layer, list(of_layer)] for layer, of_layer in maps.layers.items()],
    weights=base64.b64encode(whole.tobytes()).decode(),
  )
