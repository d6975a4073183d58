"""The scores of single classes are those of the items, and the picture shows the counts."""

import math

import numpy as np
import pytest
from matplotlib.image import imread

from tfm.evaluation import class_report


NAMES = ['cat', 'dog', 'eel', 'fox']
# Rows are true classes. An eel is never predicted; a fox neither occurs nor is predicted.
MATRIX = np.array([[3, 1, 0, 0], [2, 4, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], np.float64)


def test_scores_by_hand():
  cat, dog, eel, fox = class_report.score_classes(MATRIX, NAMES)
  assert cat == ('cat', 3 / 6, 3 / 4, pytest.approx(2 * 3 / (6 + 4)), 4)
  assert dog == ('dog', 4 / 5, pytest.approx(4 / 6), pytest.approx(2 * 4 / (5 + 6)), 6)
  assert math.isnan(eel.precision) and eel[2:] == (0, 0, 1)
  assert all(map(math.isnan, fox[1:4])) and fox.items == 0


def test_scores_of_no_items_are_empty_in_the_table(tmp_path):
  class_report.write_scores(class_report.score_classes(MATRIX, NAMES), tmp_path / 'a.csv')
  lines = (tmp_path / 'a.csv').read_text('utf-8').splitlines()
  assert lines[0] == 'name,precision,recall,f1,items'
  assert lines[1].startswith('cat,0.5,0.75,') and lines[3:] == ['eel,,0.0,0.0,1.0', 'fox,,,,0.0']


def test_the_picture_shows_what_is_confused(tmp_path):
  def darkness(matrix):
    class_report.draw_confusion_matrix(matrix, NAMES, 'a run', tmp_path / 'a.png')
    return 1 - imread(tmp_path / 'a.png')[..., 0].mean()

  confused = np.full((4, 4), 5.0)
  assert darkness(np.diag([20.0] * 4)) != darkness(confused) != darkness(2 * confused)


@pytest.mark.parametrize('more, counts', [(0, class_report.MAX_CLASSES_WITH_COUNTS**2), (1, 0)])
def test_the_picture_has_counts_unless_there_are_many_classes(tmp_path, monkeypatch, more, counts):
  figures, size = [], class_report.MAX_CLASSES_WITH_COUNTS + more
  monkeypatch.setattr(class_report.Figure, 'savefig', lambda self, *_, **__: figures.append(self))
  class_report.draw_confusion_matrix(7 * np.eye(size), range(size), 'a run', tmp_path / 'a.png')
  texts = [text.get_text() for text in figures[0].axes[0].texts]
  assert len(texts) == counts and set(texts) == ({'0', '7'} if counts else set())
