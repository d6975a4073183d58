"""One mixer with its position, as a layer of any Flax module."""

from collections.abc import Callable

import flax.linen as nn

from tfm.mixers.protocol import Context
from tfm.shapes import Array, Float


class TokenMixing(nn.Module):
  """x → position.embed → mixer, without norm and residual: [B, T, D] → [B, T, D].

  Attributes:
    position, mixer: factories.
  """

  position: Callable
  mixer: Callable

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], context: Context | None = None) -> Float[Array, 'B T D']:
    """The mixed tokens.

    Args:
      context: None: rows of one document each, without padding and without dropout.

    Raises:
      ValueError: for several documents per row, if the mixer does not separate them.
    """
    context = Context.contiguous(x[:, :, 0]) if context is None else context
    mixer = self.mixer(name='mixer')
    if context.layout != 'contiguous' and not mixer.supports_packing:
      raise ValueError(
        f'{type(mixer).__name__} does not separate the documents of a row, and the context has '
        f'layout={context.layout!r}; give rows of one document each'
      )
    position = self.position(name='position')
    x = position.embed(x, context.positions)
    tables = {position.table_key: position.compute_table()}
    return mixer(x, None, context.replace(position_tables=tables), None)[0]
