"""Where things lie that several tests read."""

import pathlib


ROOT = pathlib.Path(__file__).parents[1]
# What lies beside the project and is never copied into it.
SHARED = ROOT.parent / 'shared'
