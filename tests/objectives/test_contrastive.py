"""The contrastive loss: that of ten lines of numpy, over all pairs of all devices; and what it refuses."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm
from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.data import pipeline
from tfm.data.images import CaptionedImages
from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokens import Tokens
from tfm.models import image_text
from tfm.objectives.contrastive import Contrastive, sum_contrastive_loss
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.training import state as states


TOKENIZER, LENGTH = Bytes(), 12
PROMPTS = 'a {}', 'one {}!'
NAMES = 'cat', 'dog', 'owl'


def config(**fields):
  """A complete config of a tiny image-text model of the digits, by dotted paths."""
  made = complete(
    dict(
      data=dict(source='captions', length=LENGTH, packing='each'),
      objective='contrastive',
      model=dict(
        architecture='image_text',
        patch=4,
        layers=1,
        width=16,
        heads=2,
        position='learned',
        scan=False,
        bias=True,
        encoder=dict(width=24, layers=2, heads=4, embedding_norm=True),
      ),
      optimizer=dict(warmup=2),
      training=dict(steps=2, batch_size=16, evaluate_every=2),
    )
  )
  for path, value in fields.items():
    assign(made, path, value)
  return resolve_config(made)


@pytest.fixture(scope='module')
def model():
  return Experiment(config()).build_model(TOKENIZER.vocab_size)


@pytest.fixture(scope='module')
def boxed(model):
  return jax.jit(lambda key: states.init_params(model, key, 1, LENGTH))(jax.random.key(0))


@pytest.fixture(scope='module')
def params(boxed):
  """Far from the initial values."""
  draw = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: x + jnp.asarray(0.3 * draw.standard_normal(x.shape), x.dtype), nn.unbox(boxed)
  )


def documents(count=16, seed=0):
  """Random images with texts, of which some are equal, and classes."""
  draw = np.random.default_rng(seed)
  classes = draw.integers(0, len(NAMES), count).astype(np.int32)
  texts = [TOKENIZER.encode(f'{"a" * (i % 4)} {NAMES[c]}') for i, c in enumerate(classes)]
  offsets = np.cumsum([0, *map(len, texts)])
  tokens = Tokens('made up', np.concatenate(texts), offsets, eos_id=TOKENIZER.eos_id, bytes=1)
  images = draw.integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)
  return CaptionedImages('made up', images, classes, NAMES, tokens)


def make_batch(count=16, seed=None):
  """The rows of all documents, for an evaluation unless a seed is given; the last two are padding."""
  objective, experiment = dataclasses.replace(OBJECTIVE, prompts=PROMPTS), Experiment(config())
  rows = objective.rows(experiment.packing, documents(count), LENGTH, seed, TOKENIZER)
  made = [rows[i] for i in range(count - 2)]
  made += 2 * [rows.padding_like(made[0])]
  return {name: np.stack([row[name] for row in made]) for name in made[0]}


OBJECTIVE = Contrastive(chunk=0, layout='contiguous', recurrence=0, shape=(8, 8, 1))


def info_nce(logits):
  """The sum over pairs in ten lines of numpy."""
  total, count = 0.0, len(logits)
  for i in range(count):
    row, column = np.exp(logits[i]), np.exp(logits[:, i])
    total -= 0.5 * np.log(row[i] / row.sum()) + 0.5 * np.log(column[i] / column.sum())
  return total


def embed(model, params, batch):
  """The embeddings and the scale, in float64."""
  embedded = jax.jit(
    lambda params, images, tokens, context: model.apply(
      {'params': params},
      method=lambda m: (m.embed_images(images, False), m.embed_texts(tokens, context), m.clipped_scale()),
    )
  )(params, batch['image'], batch['inputs'], text_context(batch))
  return [np.asarray(x, np.float64) for x in embedded]


def text_context(batch):
  return image_text.Context(
    batch['positions'], batch['segments'], np.zeros_like(batch['segments']), layout='contiguous'
  )


def compute(model):
  """(parameters, batch) → ((loss, sums), gradients)."""
  return jax.value_and_grad(lambda params, batch: OBJECTIVE(model, params, batch, None), has_aux=True)


@pytest.fixture(scope='module')
def one(model, params):
  """A batch, and what one device computes of it."""
  batch = make_batch()
  return batch, jax.jit(compute(model))(params, batch)


def test_the_loss_is_that_of_ten_lines_of_numpy_and_padding_does_not_count():
  logits = np.random.default_rng(0).standard_normal((7, 7)) * 3
  is_pair = np.array([1, 1, 0, 1, 1, 1, 0], bool)
  loss, nearest = sum_contrastive_loss(jnp.asarray(logits, jnp.float32), jnp.asarray(is_pair))
  among = logits[is_pair][:, is_pair]
  np.testing.assert_allclose(loss, info_nce(among), rtol=1e-5)
  np.testing.assert_array_equal(np.asarray(nearest)[is_pair], np.flatnonzero(is_pair)[among.argmax(1)])
  gradient = jax.grad(lambda x: sum_contrastive_loss(x, jnp.asarray(is_pair))[0])(jnp.asarray(logits))
  assert np.isfinite(gradient).all() and not gradient[~is_pair].any() and not gradient[:, ~is_pair].any()


@pytest.mark.slow
def test_every_metric_is_that_of_the_embeddings(model, params, one):
  batch, ((_, sums), _) = one
  images, texts, scale = embed(model, params, batch)
  np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, rtol=1e-5)
  pairs = slice(0, 14)
  images, texts, inputs = images[pairs], texts[pairs], batch['inputs'][pairs]
  logits = scale * images @ texts.T
  np.testing.assert_allclose(sums['loss'], info_nce(logits), rtol=1e-5)
  assert sums['tokens'] == 14
  np.testing.assert_allclose(sums['temperature'] / 14, 1 / scale, rtol=1e-5)
  assert sums['accuracy'] == sum((inputs[row.argmax()] == own).all() for row, own in zip(logits, inputs))
  classes = np.zeros((len(NAMES), images.shape[1]))
  for c, name in enumerate(NAMES):
    for prompt in PROMPTS:
      tokens = np.array([[TOKENIZER.bos_id, *TOKENIZER.encode(prompt.format(name)), TOKENIZER.eos_id]])
      context = image_text.Context.contiguous(jnp.asarray(tokens))
      classes[c] += np.asarray(model.apply({'params': params}, tokens, context, method='embed_texts'))[0]
  classes /= np.linalg.norm(classes, axis=1, keepdims=True)
  predicted = (images @ classes.T).argmax(1)
  assert sums['zero_shot'] == (predicted == batch['classes'][pairs]).sum()
  assert len(set(predicted)) > 1, 'a model that always predicts one class shows nothing'


@pytest.mark.slow
def test_an_image_is_embedded_by_its_class_token(model, params):
  """Of the image encoder alone, whose width is its own."""
  images, encoder = make_batch()['image'], model.encoder()
  apply = jax.jit(lambda params, *images: encoder.apply({'params': params}, *images, method='features'))
  x = np.asarray(apply(params['encoder'], *encoder.arguments(images)))
  assert x.shape == (16, 5, 24) and 'bias' not in params['encoder']['patches']
  expected = x[:, 0] @ np.asarray(params['image_projection']['kernel'])
  embedded = model.apply({'params': params}, images, False, method='embed_images')
  np.testing.assert_allclose(embedded, expected / np.linalg.norm(expected, axis=1)[:, None], atol=1e-5)


@pytest.mark.slow
def test_the_order_of_the_pairs_does_not_matter_and_the_pairing_does(model, params):
  batch, order = make_batch(seed=0), np.random.default_rng(1).permutation(14).tolist() + [14, 15]
  loss = jax.jit(lambda batch: OBJECTIVE(model, params, batch, None)[0])
  np.testing.assert_allclose(loss({k: x[order] for k, x in batch.items()}), loss(batch), rtol=1e-5)
  assert abs(loss(batch | dict(image=batch['image'][order])) - loss(batch)) > 0.1


def test_the_gradient_of_the_temperature_is_that_of_the_formula(model, params, one):
  """∂ loss / ∂ s = Σ_ij (softmax - identity) · l_ij, of both directions."""
  batch, (_, gradient) = one
  images, texts, scale = embed(model, params, batch)
  logits = (scale * images @ texts.T)[:14, :14]
  both = [np.exp(logits) / np.exp(logits).sum(axis, keepdims=True) - np.eye(14) for axis in (0, 1)]
  np.testing.assert_allclose(gradient['logit_scale'], (sum(both) / 2 * logits).sum(), rtol=1e-4)
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradient['encoder'])), 'images are trained'


def test_the_scale_starts_as_published_and_ends_at_one_hundred(model, boxed):
  np.testing.assert_allclose(np.exp(nn.unbox(boxed)['logit_scale']), 1 / 0.07, rtol=1e-6)
  top = np.float32(np.log(100))
  for x, gradients in ((top - 1, (-3, 3)), (top + 1, (0, 3))):
    value, pull = jax.vjp(lambda x: image_text.clip_above(x, top), x)
    assert value == min(x, top)
    assert tuple(float(pull(jnp.float32(g))[0]) for g in (-3, 3)) == gradients


@pytest.mark.parametrize(
  'axes', [dict(data=8), pytest.param(dict(data=2, fsdp=2, tensor=2), marks=pytest.mark.slow)]
)
def test_negatives_are_those_of_all_devices(model, boxed, params, one, axes):
  """Loss, metrics and gradients on a mesh are those of one device, which compares all pairs. No device waits
  for others within a branch: beside it XLA's CPU client starts other collectives, and can run out of
  threads.
  """
  rules, mesh, (batch, expected) = sharding.parse_rules(config().rules), meshes.make(axes), one
  with sharding.context(mesh, rules):
    placed = jax.device_put(params, sharding.named_shardings(boxed, mesh, rules))
    rows = jax.device_put(batch, sharding.batch_sharding(mesh, rules))
    step = jax.jit(compute(model)).lower(placed, rows).compile()
    many = step(placed, rows)
  assert ' conditional(' not in step.as_text()
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), expected, many)


def test_a_row_of_padding_has_the_shape_of_a_row():
  experiment = Experiment(config())
  data = pipeline.open_data(experiment.source, experiment.tokenizer)
  objective = experiment.objective
  tokens = data.tokens('validation')
  row = objective.rows(experiment.packing, tokens, LENGTH, 0, data.tokenizer)[0]
  padding = objective.padding_row(LENGTH)
  assert {name: np.shape(x) for name, x in padding.items()} == {name: np.shape(x) for name, x in row.items()}


def test_a_text_keeps_its_end(model):
  """Rows are beginning, text, end; of a long text the end is kept, and the embedding is that of the end."""
  experiment, images = Experiment(config()), documents()
  [long] = [i for i in range(16) if i == images.text.lengths.argmax()]
  row = experiment.packing.rows(images, LENGTH, 0)
  assert {tuple(row[i]['inputs'][:1]) for i in range(8)} == {(TOKENIZER.bos_id,)}
  short = experiment.packing.evaluation_rows(images, 5)[long]
  text = TOKENIZER.encode('a')[0]
  assert short['segments'].tolist() == [1] * 5 and short['inputs'][-1] == TOKENIZER.eos_id
  assert text in short['inputs'] and short['image'].shape == (8, 8, 1)
  with pytest.raises(
    ValueError, match="length=7 is less than the 20 tokens of the prompt 'a photo of the cat'"
  ):
    OBJECTIVE.rows(experiment.packing, images, 7, None, TOKENIZER)
  with pytest.raises(ValueError, match='length=1 is less than the 2 tokens'):
    experiment.packing.evaluation_rows(images, 1)


@pytest.mark.slow  # it compiles a step and an evaluation
def test_a_run_trains_is_evaluated_and_generates_no_text(tmp_path, capsys):
  run_config = config(objective=f'contrastive({PROMPTS})')
  validate_run(Experiment(run_config), 8)
  train(run_config, str(tmp_path))
  metrics = runs.evaluate(runs.load(str(tmp_path)), 'validation').metrics
  assert (
    set(metrics) == {'loss', 'accuracy', 'temperature', 'zero_shot', 'tokens'} and metrics['tokens'] == 100
  )
  assert 0 < metrics['loss'] < np.log(16) + 1
  loaded, texts = tfm.load(str(tmp_path)), ['seven', 'a 2']
  pixels = np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32)
  ids = [np.array([[TOKENIZER.bos_id, *TOKENIZER.encode(text), TOKENIZER.eos_id]]) for text in texts]
  alone = [
    loaded.model.apply(
      {'params': loaded.params}, pixels[:, 0, ..., None], row, image_text.Context.contiguous(row)
    )[0]
    for row in ids
  ]
  np.testing.assert_allclose(
    loaded.logits(texts, pixel_values=pixels), np.concatenate(alone, 1), rtol=1e-4, atol=1e-4
  )
  assert cli.main(['generate', f'--workdir={tmp_path}', '--prompt=seven']) == 2
  assert 'image-text model, which generates no text' in capsys.readouterr().err


@pytest.mark.parametrize(
  'fields, sentence',
  [
    ({'training.gradient_accumulation': 2}, 'compares all of its rows with each other; set it to 1'),
    ({'data.source': 'digits'}, 'trains on images with a text and a label.*image and label'),
    ({'model.patch': 3}, 'does not divide the 8 × 8 pixels'),
    ({'model.patch': 0}, 'model.patch=0 does not divide'),
    ({'model.class_tokens': 0}, 'class_tokens=0 is less than the 1'),
    ({'mesh.sequence': 2}, 'patch=4 gives images of 5 tokens, which do not divide over the 2 devices'),
    ({'model.pooling': 'mean'}, "model.pooling='mean' needs an encoder"),
    ({'model.output_bias': True}, 'model.output_bias=True changes logits over the vocabulary'),
    ({'model.tie_embeddings': False}, 'model.tie_embeddings=False is for logits over the vocabulary'),
    ({'model.parametrization': 'mup(8)'}, 'no rule for the two widths'),
    ({'objective': "contrastive(('a photo',))"}, "prompts has 'a photo'"),
    ({'objective': 'causal_lm'}, 'trains on texts'),
  ],
)
def test_what_cannot_be_is_refused(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    experiment = Experiment(config(**fields))
    validate_run(experiment, 8)
    experiment.build_model(TOKENIZER.vocab_size)


def test_the_heads_of_the_encoder_divide_its_own_width():
  with pytest.raises(
    ValueError, match=r'model.encoder.heads=5 does not divide config.model.encoder.width=24'
  ):
    config(**{'model.encoder.heads': 5})
