"""tfm: a laboratory for Transformers in JAX and Flax."""

from typing import Any


def __getattr__(name: str) -> Any:
  # Imported on first use, so that commands start without it.
  if name == 'from_pretrained':
    from tfm.hf.pretrained import from_pretrained

    return from_pretrained
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
