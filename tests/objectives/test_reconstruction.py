"""Reconstruction of a text from one vector: the loss in numpy, what it depends on, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm
from tests.objectives.on_mesh import require_equal_on_mesh
from tests.reference import layers
from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.conformance import tiny
from tfm.conformance.tiny import LENGTH, VOCAB
from tfm.mixers.protocol import Context
from tfm.models import flops
from tfm.runs.train import train
from tfm.serving.open_service import Options, open_service
from tfm.training.metrics import read


DRAW = np.random.default_rng(0)
LENGTHS = np.array([LENGTH, 7, 0])  # the last row is padding
VALID = np.arange(LENGTH) < LENGTHS[:, None]
BATCH = dict(
  inputs=VALID * DRAW.integers(1, VOCAB, (3, LENGTH)),
  targets=VALID * DRAW.integers(1, VOCAB, (3, LENGTH)),
  positions=VALID * np.arange(LENGTH),
  segments=1 * VALID,
  answers=VALID * (np.arange(LENGTH) > 1),
)


def build(objective='reconstruction', **model):
  config = tiny.config(**model)
  config.objective, config.data.packing = objective, 'answered'
  experiment = Experiment(resolve_config(config))
  return experiment.build_model(VOCAB), experiment.objective


@pytest.mark.parametrize('width', [16, pytest.param(15, marks=pytest.mark.slow)])
def test_loss(width):
  model, objective = build(width=width, heads=1, kv_heads=1, position='none')
  params = tiny.parameters(model)
  batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), BATCH)
  total, sums = jax.jit(lambda params: objective(model, params, batch, None))(params)

  context = Context(batch['positions'], batch['segments'])
  x = np.asarray(model.apply({'params': params}, batch['inputs'], context, method='features')[0], np.float64)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  own, pairs = p['reconstruction'], width // 2
  angle = np.arange(LENGTH)[:, None] * 10_000.0 ** (-2 * np.arange(pairs) / width)
  waves = np.concatenate([np.sin(angle), np.cos(angle), np.zeros((LENGTH, width % 2))], -1)
  loss, hits = 0.0, 0
  for row in range(2):
    y = x[row, LENGTHS[row] - 1] + waves
    for i in range(2):
      y = (
        layers.layernorm(y, **own[f'norm_{i}']) @ own[f'project_{i}']['kernel'] + own[f'project_{i}']['bias']
      )
      y = np.asarray(jax.nn.gelu(y, approximate=False), np.float64)
    logits = (layers.layernorm(y, **own['norm']) @ p['output']['kernel'])[:, :VOCAB]
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for t in range(2, LENGTHS[row]):
      loss -= log_p[t, BATCH['targets'][row, t]]
      hits += log_p[t].argmax() == BATCH['targets'][row, t]
  np.testing.assert_allclose([total, sums['loss']], loss, rtol=2e-5)
  assert sums['accuracy'] == hits and sums['tokens'] == LENGTH - 2 + 5


def test_it_reads_the_last_token_of_a_row_alone():
  """The gradient of the loss with respect to the hidden states of all other tokens is zero."""
  model, objective = build()
  params = tiny.parameters(model)
  context = Context(*(jnp.asarray(BATCH[name], jnp.int32) for name in ('positions', 'segments')))
  x = jnp.asarray(DRAW.standard_normal((3, LENGTH, 16)), jnp.float32)

  def loss(x):
    return jnp.sin(model.apply({'params': params}, x, context, method='reconstruct')).sum((1, 2))[:2].sum()

  has_gradient = np.abs(jax.jit(jax.grad(loss))(x)).max(-1) > 0
  assert [np.flatnonzero(row).tolist() for row in has_gradient] == [[LENGTH - 1], [6], []]


def test_its_parameters_and_flops_are_of_training_alone():
  (model, _), (plain, _) = build(), build('answers')
  assert {*tiny.boxed(model)} - {*tiny.boxed(plain)} == {'reconstruction'}
  D = plain.width
  added = flops.per_token(model, LENGTH).forward - flops.per_token(plain, LENGTH).forward
  assert added == 2 * 2 * D * D
  assert flops.per_token(model, LENGTH, trains=False).forward == flops.per_token(plain, LENGTH).forward


@pytest.mark.slow
def test_the_mesh_changes_nothing():
  model, objective = build()
  batch = {name: jnp.asarray(x[[0, 1, 0, 1]], jnp.int32) for name, x in BATCH.items()}
  require_equal_on_mesh(model, objective, batch, dict(data=2, sequence=2, tensor=2))


@pytest.mark.slow
def test_a_model_learns_to_compress_four_symbols(tmp_path, capsys):
  """Of three kinds, on unseen texts, where guessing has an accuracy of a third. It generates no text."""
  config = resolve_config(
    complete(
      dict(
        objective='reconstruction',
        data=dict(
          source='compression(length=4, vocabulary=3, held_out=20)',
          tokenizer='words',
          length=8,
          packing='answered',
        ),
        model=dict(layers=1, width=32, heads=2, position='rope', initializer='lecun_normal'),
        optimizer=dict(learning_rate=1e-2, warmup=20),
        training=dict(steps=600, batch_size=32, log_every=600, evaluate_every=600),
      )
    )
  )
  train(config, tmp_path)
  rows = {row['split']: row for row in read(tmp_path / 'metrics.jsonl')}
  assert rows['validation']['accuracy'] > 0.8 and rows['validation']['exact'] > 0.4
  assert cli.main(['generate', f'--workdir={tmp_path}', '--prompt=. t1 t2']) == 2
  refusal = "a model of config.objective='reconstruction' continues no text; use tfm evaluate"
  assert refusal in capsys.readouterr().err
  with pytest.raises(ValueError, match=refusal):
    tfm.load(tmp_path).generate('. t1 t2')
  with pytest.raises(ValueError, match=refusal):
    open_service('run', tfm.load(tmp_path), Options(queue=1, timeout=1.0))
