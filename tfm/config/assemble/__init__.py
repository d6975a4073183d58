"""Config → objects: the one place where spec strings become modules."""

from tfm.config.assemble.blocks import DTYPES, build_block, build_position
from tfm.config.assemble.experiment import Experiment


__all__ = ('DTYPES', 'Experiment', 'build_block', 'build_position')
