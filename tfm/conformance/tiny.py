"""A decoder small enough for a test, by the public path: `complete`, `resolve`, `build.model`."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.conformance import collect
from tfm.conformance.sentences import find_mask_fault
from tfm.mixers.protocol import Context
from tfm.parallel import sharding


VOCAB = 29
LENGTH = 12
PREFIX = 3
# Two layers, so that what one layer leaks another carries on; grouped heads; biases, so that there is
# something to forget; an output of its own, so that the embedding's gradient is the input's alone.
MODEL = dict(
  layers=2,
  width=16,
  heads=4,
  kv_heads=2,
  feed_forward_width=32,
  bias=True,
  tie_embeddings=False,
  vocab_multiple=8,
)


def config(length=LENGTH, **model):
  """The resolved config of a tiny model with some fields of `model` set, and an objective for its mask."""
  objective = 'prefix_lm' if collect.mask(model.get('mask', 'causal')).required_fields else 'causal_lm'
  # A mixer without groups has as many key heads as query heads; what is no mixer is refused later.
  mixer = spec.parse(model.get('mixer', 'softmax')).name
  grouped = mixer not in collect.variants('mixer') or collect.variant('mixer', mixer).supports_grouped_heads
  heads = {} if grouped else dict(kv_heads=None)
  bare = dict(feed_forward_width=None) if model.get('feed_forward') == 'none' else {}
  residual = collect.variant('residual', model.get('residual', 'sequential'))
  around = dict(norm_placement=residual.placements[0]) | (dict(mask='full') if residual.looks_ahead else {})
  return resolve_config(
    complete(dict(data=dict(length=length), model=MODEL | heads | bare | around | model, objective=objective))
  )


def decoder(length=LENGTH, vocab=VOCAB, causal=True, **model):
  """The model of `config`."""
  return Experiment(config(length, **model)).build_model(vocab, causal)


def denoiser(**model):
  """A diffusion model of images of 8 × 8 pixels, and its config."""
  sizes = {field: MODEL[field] for field in ('layers', 'width', 'heads', 'feed_forward_width', 'bias')}
  fields = dict(architecture='diffusion', patch=2, position='sinusoidal_2d')
  made = resolve_config(
    complete(
      dict(
        data=dict(source="latents('path', 8, 1)", length=16, packing='each'),
        model=sizes | fields | model,
        objective='diffusion(10)',
      )
    )
  )
  return Experiment(made).build_model(0), made


def boxed(model, rows=1, length=LENGTH):
  """The abstract parameters in their boxes."""
  params = jax.eval_shape(model.init, jax.random.key(0), *model.example(rows, length))['params']
  sharding.require_axes(params)
  return params


def parameters(model, seed=0, scale=0.4, boxes=None):
  """Parameters drawn from N(·, scale²) on the host, the vectors of norms about 1.

  Not the initializers' own: what starts at zero or close to it hides mistakes.
  """
  draw = np.random.default_rng(seed)

  def make(path, box):
    about = 1.0 if path[-1].key == 'scale' else 0.0
    return jnp.asarray(about + scale * draw.standard_normal(box.value.shape), jnp.float32)

  boxes = boxed(model) if boxes is None else boxes
  return jax.tree_util.tree_map_with_path(make, boxes, is_leaf=lambda x: hasattr(x, 'names'))


class Tiny:
  """A model with parameters, compiled once per shape; raises ValueError where the config is refused.

  Its mask may look ahead. Every document's prefix has `PREFIX` tokens where nothing else is said.
  """

  def __init__(self, **model):
    self.model = decoder(causal=False, **model)
    self.params = parameters(self.model)
    self.apply = jax.jit(
      lambda params, tokens, context, caches: self.model.apply({'params': params}, tokens, context, caches)
    )

  def __call__(self, tokens, positions, segments, caches=None, prefix=PREFIX, lineage=None):
    """Logits [B T V], and the caches where some were given."""
    context = self.context(positions, segments, prefix).replace(lineage=lineage)
    logits, caches = self.apply(self.params, jnp.asarray(tokens, jnp.int32), context, caches)
    return np.asarray(logits), caches

  def context(self, positions, segments, prefix):
    positions, segments = jnp.asarray(positions, jnp.int32), jnp.asarray(segments, jnp.int32)
    return Context(positions, segments, jnp.broadcast_to(jnp.asarray(prefix, jnp.int32), segments.shape))

  def influence(self, positions, segments):
    """[T, T]: the largest |d logits[t] / d embedding of token j| along one random direction of logits.

    Every token of the row is another, so that the gradient of row `token` of the table is the
    gradient of one input.
    """
    tokens = np.random.default_rng(1).permutation(VOCAB)[: len(positions)]
    context = self.context([positions], [segments], PREFIX)
    by_row = np.asarray(self.gradients(self.params, jnp.asarray([tokens], jnp.int32), context))
    return np.abs(by_row[:, tokens]).max(-1)

  @functools.cached_property
  def gradients(self):
    def run(params, tokens, context):
      def logits(table):
        embedding = params['embedding'] | {'table': table}
        return self.model.apply({'params': params | {'embedding': embedding}}, tokens, context)[0][0]

      out, back = jax.vjp(logits, params['embedding']['table'])
      direction = jax.random.normal(jax.random.key(0), out.shape)
      one_each = jnp.eye(len(out))[:, :, None] * direction[None]
      return jax.vmap(back)(one_each)[0]

    return jax.jit(run)


class Held(nn.Module):
  """A parent module, so that a function can call the child."""

  factory: Callable

  @nn.compact
  def __call__(self, question):
    return question(self.factory(name='held'))


def apply_with_random_params(factory, question):
  """Computes `question(module)` with random parameters."""
  held, draw = Held(factory), np.random.default_rng(1)
  shapes = nn.unbox(jax.eval_shape(lambda key: held.init(key, question), jax.random.key(0)))
  params = jax.tree.map(lambda x: jnp.asarray(draw.standard_normal(x.shape), jnp.float32), shapes)
  return held.apply(params, question)


@functools.cache
def tiny(mixer, position, mask) -> Tiny:
  """One for every combination of a run."""
  return Tiny(mixer=mixer, position=position, mask=mask)


def accepted(mixer, position, mask) -> Tiny:
  """The combination, or a skip where the mask fails alone, or where the config is refused in a sentence that
  names the field.
  """
  if fault := find_mask_fault(mask):
    pytest.skip(f'the mask fails alone: {fault}')
  try:
    return tiny(mixer, position, mask)
  except ValueError as refusal:
    assert str(refusal).startswith('config.') and len(str(refusal).split()) > 5, refusal
    pytest.skip(f'refused: {refusal}')
