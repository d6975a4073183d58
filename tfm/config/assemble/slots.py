"""Single slots from their specs, for other programs: a mixer, a position, attention."""

import functools
from collections.abc import Callable
from typing import Any

import tfm.kernels
import tfm.masks
import tfm.positions
import tfm.scores
from tfm import spec
from tfm.config.assemble import mixers
from tfm.config.assemble.experiment import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.kernels.protocol import Kernel
from tfm.masks.protocol import Mask
from tfm.mixers.protocol import Context
from tfm.models.token_mixing import TokenMixing
from tfm.positions.protocol import Position
from tfm.scores.protocol import Score
from tfm.shapes import Array, Float


def build_mixer(
  text: str,
  *,
  width: int,
  heads: int,
  length: int,
  initializer: Callable[..., Array] | None = None,
  **fields: Any,
) -> TokenMixing:
  """A mixer with its position, score, mask and kernel as one Flax module: x [B T D] → y [B T D].

  Args:
    text: the spec of a mixer, such as 'softmax(qk_norm="rmsnorm")' or 'mamba'.
    width, heads: D, H.
    length: the longest sequence, in tokens.
    initializer: of all projections, such as `nn.initializers.xavier_uniform()`; None: N(0, 0.02²).
    **fields: the fields of `config.model` that describe a mixer: position='rope', mask='causal & window(64)',
      score='dot', kernel='auto', kv_heads, head_width, bias=False, dtype, dropout=dict(attention=0.1).

  Raises:
    ValueError: one sentence with the field, its value and what to use, as for a config.
  """
  model = dict(mixer=text, width=width, heads=heads, **fields)
  experiment = Experiment(resolve_config(complete(dict(model=model, data=dict(length=length)))))
  section, plain = experiment.config.model, mixers.build_initializer(experiment, 'initializer')
  initializers = mixers.Initializers(plain, plain, plain)
  make = mixers.build_mixer(experiment, 'model', section, causal=False, initializers=initializers)
  if initializer is not None:
    names = {'initializer', 'value_initializer', 'output_initializer'} & set(make.keywords)
    make = functools.partial(make, **dict.fromkeys(names, initializer))
  return TokenMixing(mixers.build_position(experiment, 'model', section), make)


def build_position(text: str, *, heads: int, head_width: int, length: int, width: int = 0) -> Position:
  """A position as a Flax module, with the hooks `embed`, `rotate` and `bias`.

  Args:
    text: the spec of a position, such as 'rope' or 'alibi'.
    heads, head_width: H, C.
    length: the longest sequence, in tokens.
    width: D, for `embed`; 0: H·C.

  Raises:
    ValueError: for an unknown name or argument.
  """
  sizes = dict(width=width or heads * head_width, heads=heads, head_width=head_width, length=length)
  return spec.factory(text, tfm.positions, Position, **sizes)()


def attend(
  q: Float[Array, 'B T H C'],
  k: Float[Array, 'B S K C'],
  v: Float[Array, 'B S K C2'],
  mask: str = 'causal',
  kernel: str = 'auto',
  context: tuple[Context, Context] | None = None,
) -> Float[Array, 'B T H C2']:
  """softmax(q·k/√C) v over the keys that the mask shows (Vaswani et al. 2017, eq. 1), computed by a kernel.

  Args:
    mask, kernel: specs, such as 'causal & window(64)' and 'chunked'.
    context: positions and segments of the queries and of the keys; None: both count from 0, without padding.

  Raises:
    ValueError: for a kernel that does not support these inputs or this platform, with the reason.
  """
  q_context, k_context = context or map(Context.contiguous, (q[:, :, 0, 0], k[:, :, 0, 0]))
  return spec.build(kernel, tfm.kernels, Kernel)(
    q,
    k,
    v,
    score=spec.factory('dot', tfm.scores, Score, head_width=q.shape[-1])()(),
    bias=None,
    mask=spec.build(mask, tfm.masks, Mask),
    q_positions=q_context.positions,
    k_positions=k_context.positions,
    q_segments=q_context.segments,
    k_segments=k_context.segments,
    k_prefix=k_context.prefix,
    layout=q_context.layout,
  )
