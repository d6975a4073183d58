"""Measures one cell in this process: `python -m tfm.benchmark.device.cell FUNCTION ARGUMENTS`.

Prints a JSON object as its last line: the numbers, or `error`, a sentence, where the cell is impossible here.
"""

import json
import sys

from tfm.benchmark.device.cells import Cell
from tfm.benchmark.process import OUT_OF_MEMORY_TEXTS


def measure(cell: Cell) -> dict:
  """The numbers of a cell, or its error: any, as one cell must not stop the others."""
  try:
    return cell.measure()
  except Exception as error:
    text = f'{type(error).__name__}: {error}'
    if any(mark in text for mark in OUT_OF_MEMORY_TEXTS):
      return dict(error='no memory')
    return dict(error=str(error).strip().splitlines()[0][:300] if str(error).strip() else text)


if __name__ == '__main__':
  print(json.dumps(measure(Cell('', sys.argv[1], json.loads(sys.argv[2])))))
