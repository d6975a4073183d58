"""`python -m tfm`: the same as the console script."""

import sys

from tfm.commands.cli import main


if __name__ == '__main__':
  sys.exit(main())
