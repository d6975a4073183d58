"""tfm: a laboratory for Transformers in JAX and Flax."""

import importlib
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
  from tfm.hf.pretrained import from_pretrained as from_pretrained

__version__ = '0.1.0'

# name → the module that defines it, imported on first use: `import tfm` and commands start without JAX.
_MODULES = {'from_pretrained': 'tfm.hf.pretrained'}
__all__ = ['__version__', *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return getattr(importlib.import_module(_MODULES[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
