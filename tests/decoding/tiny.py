"""Helpers of the decoding tests: tiny models with random parameters large enough for varied outputs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.mixers.protocol import Context


VOCAB, LENGTH = 37, 64


def tiny_model(vocab=VOCAB, **fields):
  """(model, params); `fields` are those of config.model."""
  defaults = dict(layers=2, width=16, heads=4, feed_forward_width=32, vocab_multiple=1, tie_embeddings=False)
  config = resolve_config(complete(dict(model=defaults | fields, data=dict(length=LENGTH))))
  model = Experiment(config).build_model(vocab)
  tokens = jnp.zeros((1, 4), jnp.int32)
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, Context.contiguous(tokens)))
  random = np.random.default_rng(1)
  return model, jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.5, x.shape), x.dtype), shapes['params'])


def is_greedy(model, params, prompt, new, penalty=1.0):
  """Whether each new token is the argmax after the tokens before it, by one forward pass without a cache.

  By induction this equals greedy decoding with a full forward pass per token. Padded to one length, so that
  it compiles once.

  Args:
    penalty: repetition penalty of earlier tokens.
  """
  read = np.concatenate([prompt, new[:-1]])
  logits = forward(model, params, np.pad(read, (0, LENGTH - len(read)))[None])
  return np.array_equal(
    [
      np.argmax(penalize_repetition(logits[0, n - 1], read[:n], penalty))
      for n in range(len(prompt), len(read) + 1)
    ],
    new,
  )


def penalize_repetition(logits, seen, penalty):
  """One row of logits, by the formula of the paper (Keskar et al. 2019, §4.1; for negative logits as in
  transformers).
  """
  row = np.array(logits)
  for token in set(np.asarray(seen).tolist()):
    row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
  return row


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, tokens):
  return model.apply({'params': params}, tokens, Context.contiguous(tokens))[0]
