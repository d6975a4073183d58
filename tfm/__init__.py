"""tfm: a laboratory for Transformers in JAX and Flax.

  load(workdir)              a trained run: config, params, logits, generate, attention, evaluate
  from_pretrained(folder)    a published checkpoint: the same kind of object
  build(config)              the model of a partial config, to train in a loop of one's own: init, apply
  build_mixer(spec, …)       a mixer with its position, mask and kernel, as a layer of any Flax module
  build_position(spec, …)    a position, with the hooks embed, rotate and bias
  attend(q, k, v, …)         attention under a mask, computed by a kernel

The commands are `tfm train`, `generate`, `evaluate`, `ablate`, …: `tfm --help`. Variants fill the packages
positions, masks, scores, mixers, kernels, feed_forwards, norms, residuals, objectives, optimizers,
data.sources, data.tokenizers and data.packing. docs/how-to/python.md has examples.
"""

import importlib
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
  from tfm.config.assemble.slots import attend as attend
  from tfm.config.assemble.slots import build_mixer as build_mixer
  from tfm.config.assemble.slots import build_position as build_position
  from tfm.hf.loaded_model import load as load
  from tfm.hf.pretrained import from_pretrained as from_pretrained
  from tfm.runs.built_model import build as build

__version__ = '0.1.0'

# name → the module that defines it, imported on first use: `import tfm` and commands start without JAX.
_MODULES = {
  'load': 'tfm.hf.loaded_model',
  'from_pretrained': 'tfm.hf.pretrained',
  'build': 'tfm.runs.built_model',
  'build_mixer': 'tfm.config.assemble.slots',
  'build_position': 'tfm.config.assemble.slots',
  'attend': 'tfm.config.assemble.slots',
}
__all__ = ['__version__', *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return getattr(importlib.import_module(_MODULES[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
