"""Config → objects: the one place where spec strings become modules."""

from tfm.config.assemble.blocks import build_block
from tfm.config.assemble.experiment import Experiment
from tfm.config.assemble.mixers import DTYPES, build_position


__all__ = ('DTYPES', 'Experiment', 'build_block', 'build_position')
