"""Encoder-decoders small enough for a test, by the public path."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.mixers.protocol import Context


VOCAB, LENGTH = 23, 16
MODEL = dict(
  architecture='encoder_decoder',
  layers=2,
  width=16,
  heads=4,
  feed_forward_width=32,
  bias=True,
  vocab_multiple=8,
)


def config(**model):
  return resolve_config(
    complete(dict(data=dict(length=LENGTH, packing='first_fit'), objective='seq2seq', model=MODEL | model))
  )


@functools.cache
def _made(items, source_vocab):
  model = Experiment(
    config(
      **{
        key: dict(value) if isinstance(value, tuple) and value and isinstance(value[0], tuple) else value
        for key, value in items
      }
    )
  ).build_model(VOCAB, source_vocab=source_vocab)
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), *model.example(1, 4)))['params']
  draw = np.random.default_rng(1)

  def make(path, x):
    about = 1.0 if path[-1].key == 'scale' else 0.0
    return jnp.asarray(about + 0.4 * draw.standard_normal(x.shape), jnp.float32)

  return model, jax.tree_util.tree_map_with_path(make, shapes)


def make_model(source_vocab=0, **model):
  """(model, params), make_model once for equal fields; parameters are random, not the initializers' own."""
  items = tuple(
    (key, tuple(value.items()) if isinstance(value, dict) else value) for key, value in model.items()
  )
  return _made(items, source_vocab)


def context(segments, positions=None, **more):
  """Segments [B T] as a context; positions count from the first token of each run."""
  segments = np.asarray(segments, np.int32)
  if positions is None:
    positions = np.zeros_like(segments)
    for b, t in np.ndindex(*segments.shape):
      if t and segments[b, t] == segments[b, t - 1]:
        positions[b, t] = positions[b, t - 1] + 1
  return Context(jnp.asarray(positions), jnp.asarray(segments), **more)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, tokens, here, source, there):
  return model.apply({'params': params}, tokens, here, None, source, there)[0]
