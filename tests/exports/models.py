"""Small models of every architecture, with inputs and what they compute.

  python -m tests.exports.models MODEL SPEC FOLDER

exports one in a process of its own.
"""

import pathlib
import sys

import jax
import numpy as np

import tfm.exports
from tfm import spec
from tfm.exports.protocol import Format
from tfm.parallel import mesh as meshes
from tfm.runs.built_model import build
from tfm.runs.load import Run


VOCAB, LENGTH = 61, 32
SIZES = dict(layers=2, width=32, heads=4)
LLAMA = dict(kv_heads=2, norm='rmsnorm', feed_forward='swiglu')
MODELS = {
  'decoder': dict(model=SIZES | LLAMA),
  'decoder of learned positions': dict(model=SIZES | dict(position='learned', bias=True)),
  'encoder': dict(model=SIZES | dict(architecture='encoder', position='learned'), objective='masked_lm'),
  'encoder-decoder': dict(
    model=SIZES | dict(architecture='encoder_decoder', position='t5'),
    objective='seq2seq',
    data=dict(source='numbers("en", "de")', packing='padded'),
  ),
  'vision': dict(
    model=SIZES | dict(architecture='encoder', position='learned', patch=2),
    objective='classification(10)',
    data=dict(source='digits', packing='each', length=17),
  ),
}
# What other tests export; tied embeddings of random values repeat one token.
MORE_MODELS = {
  'encoder-decoder of untied embeddings': MODELS['encoder-decoder']
  | dict(model=SIZES | dict(architecture='encoder_decoder', position='rope', tie_embeddings=False)),
  'decoder of short convolutions': dict(model=SIZES | dict(mixer='short_convolution', position='none')),
  'decoder of rounded keys': dict(model=SIZES | LLAMA, decoding=dict(cache='int8')),
  'mamba': dict(model=SIZES | dict(mixer='mamba', position='none')),
}


def make_run(name):
  """A run of a model, with parameters large enough that errors show."""
  fields = dict((MODELS | MORE_MODELS)[name])
  fields['data'] = dict(length=LENGTH) | fields.get('data', {})
  built = build(fields, vocab=None if name == 'vision' else VOCAB)
  params, key = built.init(jax.random.key(0)), jax.random.key(1)
  params = jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x + 0.1 * jax.random.normal(key, x.shape), params)
  mesh = meshes.make(dict(data=1), jax.devices()[:1])
  return Run(built.experiment, built.model, params, None, mesh, built.experiment.rules, 5, '')


def random_inputs(name, rows=3):
  """The inputs by name, in rows of 9 tokens, the last without its last two."""
  draw = np.random.default_rng(0)
  if name == 'vision':
    return dict(images=draw.standard_normal((rows, 8, 8, 1)).astype(np.float32))
  tokens, source = (draw.integers(0, VOCAB, (rows, size)).astype(np.int32) for size in (9, 11))
  inputs, masked = dict(tokens=tokens), tokens
  if name.startswith('encoder-decoder'):
    inputs, masked = inputs | dict(source=source), source
  if 'decoder' != name.split()[0]:
    inputs['mask'] = np.ones_like(masked)
    inputs['mask'][-1, -2:] = 0
  return inputs


def expected_outputs(run, inputs):
  """The logits of the model by name; a masked row is computed alone, without its padding."""
  mask = inputs.get('mask')
  named = [inputs[name] for name in ('images', 'tokens', 'source') if name in inputs]
  rows = []
  for i in range(len(named[0])):
    arguments = [x[i : i + 1] for x in named]
    if mask is not None:
      arguments[-1] = arguments[-1][:, : mask[i].sum()]
    rows.append(run.model.apply({'params': run.params}, *run.model.arguments(*arguments))[0])
  if not isinstance(rows[0], dict):
    rows = [dict(logits=row) for row in rows]
  return {name: [np.asarray(row[name][0]) for row in rows] for name in rows[0]}


def export(run, text, folder):
  folder.mkdir()
  return spec.build(text, tfm.exports, Format, family='').write(run, 'runs/x', folder)


def assert_alike(outputs, expected):
  assert set(outputs) == set(expected)
  for name, rows in expected.items():
    for actual, row in zip(outputs[name], rows, strict=True):
      # Padding is at the end.
      np.testing.assert_allclose(actual[: len(row)], row, atol=1e-4, err_msg=name)


if __name__ == '__main__':
  name, text, folder = sys.argv[1:]
  export(make_run(name), text, pathlib.Path(folder))
