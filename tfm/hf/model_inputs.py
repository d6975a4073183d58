"""Inputs of loaded models: texts or ids, rows of padding, and where a model's tokens stand."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from tfm.config import schema
from tfm.errors import require
from tfm.mixers.protocol import Context
from tfm.models.trunk import Trunk
from tfm.shapes import Array


def as_texts(inputs: Any) -> list[str] | None:
  """A list of texts; None for ids."""
  texts = [inputs] if isinstance(inputs, str) else inputs
  is_list = isinstance(texts, Sequence) and bool(texts) and all(isinstance(text, str) for text in texts)
  return list(texts) if is_list else None


def pad_rows(rows: Sequence[np.ndarray], pad: int) -> np.ndarray:
  """Rows of ids as one array [B, T], padded on the right."""
  longest = max(map(len, rows))
  return np.stack([np.pad(row, (0, longest - len(row)), constant_values=pad) for row in rows]).astype(
    np.int32
  )


def build_context(
  ids: Array, mask: Array | None, position_counting: str = 'attended', pad: int | None = None
) -> Context:
  """The context of rows of one document each, with padding where the mask is 0.

  Args:
    position_counting: one of `tfm.hf.families.protocol.POSITION_COUNTING`.
    pad: the padding id, for 'not_padding'.
  """
  ids = np.asarray(ids)
  mask = np.ones(ids.shape, np.int32) if mask is None else np.asarray(mask, np.int32)
  if position_counting == 'not_padding':
    positions = np.where(ids == pad, -1, np.cumsum(ids != pad, 1) - 1)  # -1: the table's row for padding
  else:
    counted = mask if position_counting == 'attended' else np.ones_like(mask)
    positions = np.maximum(np.cumsum(counted, 1) - 1, 0)
  return Context(jnp.asarray(positions, jnp.int32), jnp.asarray(mask), jnp.zeros_like(jnp.asarray(mask)))


def end_texts(ids: Array, context: Context, eos: Any) -> Context:
  """The context of rows in which what follows the end of the text is padding, so that its last token is the
  end.

  Args:
    eos: the token that ends a text, at its first place; 2, which older files of CLIP have whatever their
      tokenizer, stands for the greatest id of a row, as in the published implementation.

  Raises:
    ValueError: for a row without an end.
  """
  ids = np.asarray(ids)
  is_end = ids == (ids.max(1, keepdims=True) if eos == 2 else eos)
  missing = np.flatnonzero(~is_end.any(1))
  require(
    not len(missing),
    f'input_ids has no end token {eos} in row {missing.min(initial=len(ids))}, and the embedding of a text '
    'is that of its end; add it',
  )
  is_text = np.arange(ids.shape[1]) <= is_end.argmax(1)[:, None]
  return context.replace(segments=context.segments * is_text)


def read_images(pixel_values: Array, shape: tuple[int, ...]) -> Array:
  """Images [B, H, W, Q] from [B, Q, H, W]. Raises ValueError unless they have the shape H, W, Q."""
  images = jnp.moveaxis(jnp.asarray(pixel_values), 1, -1)
  require(
    images.shape[1:] == shape,
    f'pixel_values have shape {np.shape(pixel_values)[1:]} (channels, height, width); the model requires '
    f'{shape[2:] + shape[:2]}',
  )
  return images


def validate_padding(config: ConfigDict, context: Context) -> None:
  """Raises ValueError for padding between tokens if an encoder has masks over positions, which would not
  count it.
  """
  index, is_token = np.arange(context.positions.shape[1]), np.asarray(context.segments) > 0
  shift, bound = np.asarray(context.positions) - index, len(index)
  has_gap = (np.where(is_token, shift, -bound).max(1) > np.where(is_token, shift, bound).min(1)).any()
  has_gap &= config.model.architecture == 'encoder'
  require(
    not has_gap or all(part.mask == 'full' for part in schema.parts(config).values()),
    'attention_mask hides ids between the tokens of a row, which windowed masks do not support; '
    'remove these ids',
  )


def validate_positions(model: Trunk, context: Context) -> None:
  """Raises ValueError for tokens beyond the model's maximum position."""
  limits = [factory().max_positions for factory in model.positions]
  limit = min((limit for limit in limits if limit is not None), default=math.inf)
  last = int(context.positions.max(initial=0))
  require(last < limit, f'input_ids reach position {last}; the model has {limit} positions, use shorter rows')
