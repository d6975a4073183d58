"""The classes of a classifier one by one: precision, recall and F1 of each, and the confusion matrix."""

import csv
import io
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm.errors import importing_extra
from tfm.shapes import Float
from tfm.training.atomic_files import write_atomically


with importing_extra('plots'):
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from sklearn.metrics import ConfusionMatrixDisplay, precision_recall_fscore_support


# Beyond so many classes the cells of a picture are too small for their counts.
MAX_CLASSES_WITH_COUNTS = 25


class ClassScore(NamedTuple):
  """What a classifier has on one class; NaN where a ratio has no items.

  Attributes:
    name: of the class.
    precision: the fraction of the items predicted as this class that are of it.
    recall: the fraction of the items of this class that are predicted as it.
    f1: the harmonic mean of the two.
    items: how many are of this class.
  """

  name: str
  precision: float
  recall: float
  f1: float
  items: float


def score_classes(matrix: Float[np.ndarray, 'C C'], names: Sequence[str]) -> list[ClassScore]:
  """The scores of each class, by scikit-learn.

  Args:
    matrix: the number of items by [true class, predicted class].
    names: of the classes.
  """
  true, predicted = np.indices(matrix.shape).reshape(2, -1)
  scores = precision_recall_fscore_support(
    true, predicted, labels=range(len(names)), sample_weight=matrix.ravel(), zero_division=np.nan
  )
  return [ClassScore(name, *map(float, row)) for name, *row in zip(names, *scores, strict=True)]


def write_scores(scores: Sequence[ClassScore], file: pathlib.Path) -> None:
  """Writes a table as CSV; a score without items is empty."""
  table = io.StringIO(newline='')
  writer = csv.writer(table)
  writer.writerow(ClassScore._fields)
  writer.writerows(['' if x != x else x for x in score] for score in scores)
  write_atomically(file, table.getvalue())


def format_score(value: float) -> str:
  """A score for a table."""
  return '' if math.isnan(value) else f'{value:.4f}'


def draw_confusion_matrix(
  matrix: Float[np.ndarray, 'C C'], names: Sequence[str], title: str, file: pathlib.Path
) -> None:
  """Draws a matrix [true class, predicted class]: colours are fractions of the true class, numbers counts."""
  size = min(3 + 0.45 * len(names), 24)
  figure = Figure(figsize=(size + 1, size), layout='constrained', facecolor='white')
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  fractions = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
  shows_counts = len(names) <= MAX_CLASSES_WITH_COUNTS
  display = ConfusionMatrixDisplay(fractions, display_labels=names)
  display.plot(
    ax=axes,
    include_values=shows_counts,
    cmap='Blues',
    xticks_rotation='vertical',
    im_kw=dict(vmin=0, vmax=1),
    text_kw=dict(fontsize=8),
  )
  if shows_counts:
    for text, count in zip(display.text_.ravel(), matrix.ravel(), strict=True):
      text.set_text(f'{count:g}')
  axes.set_title(title, fontsize=10)
  figure.savefig(file, dpi=144)
