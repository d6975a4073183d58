"""Tiny models with random parameters, large enough for the likeliest tokens to vary."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.mixers.protocol import Context


VOCAB, LENGTH = 37, 64


def tiny_model(vocab=VOCAB, **fields):
  """(model, params); `fields` are those of config.model."""
  tiny = dict(layers=2, width=16, heads=4, feed_forward_width=32, vocab_multiple=1, tie_embeddings=False)
  config = resolve_config(complete(dict(model=tiny | fields, data=dict(length=LENGTH))))
  model = Experiment(config).build_model(vocab)
  tokens = jnp.zeros((1, 4), jnp.int32)
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, Context.whole(tokens)))
  random = np.random.default_rng(1)
  return model, jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.5, x.shape), x.dtype), shapes['params'])


def follows(model, params, prompt, new, penalty=1.0):
  """Whether each new token is the likeliest after all before it, by one forward pass without a cache.

  The penalty is for tokens that are there already.

  By induction over the tokens this is the rollout that takes the argmax of a whole forward pass each
  time. Padded to one length, so that it compiles once.
  """
  read = np.concatenate([prompt, new[:-1]])
  logits = forward(model, params, np.pad(read, (0, LENGTH - len(read)))[None])
  return np.array_equal(
    [np.argmax(penalized(logits[0, n - 1], read[:n], penalty)) for n in range(len(prompt), len(read) + 1)],
    new,
  )


def penalized(logits, seen, penalty):
  """One row of logits, by the words of the paper (Keskar et al. 2019, §4.1, and for negative logits transformers)."""
  row = np.array(logits)
  for token in set(np.asarray(seen).tolist()):
    row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
  return row


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, tokens):
  return model.apply({'params': params}, tokens, Context.whole(tokens))[0]


@pytest.fixture(scope='session')
def tiny():
  return tiny_model()


@pytest.fixture
def prompts():
  """Of lengths that end inside, at and beyond the pieces that prompts are read in."""
  random = np.random.default_rng(0)
  return [random.integers(1, VOCAB, n, dtype=np.int32) for n in (1, 16, 17, 5, 30, 2)]
