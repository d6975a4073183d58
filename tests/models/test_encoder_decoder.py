"""The encoder-decoder: the formula of the paper, dependences between tokens, padding, packing, refusals."""

import jax
import numpy as np
import pytest

from tests.models import pairs
from tests.models.pairs import VOCAB, context, logits, make_model
from tests.reference import encoder_decoder
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete


DRAW = np.random.default_rng(0)
B, T, S = 2, 5, 7
TARGET, SOURCE = DRAW.integers(0, VOCAB, (B, T)), DRAW.integers(0, VOCAB, (B, S))
HERE, THERE = np.ones((B, T), int), np.array([[1] * S, [1] * 4 + [0] * 3])


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=5e-5, atol=5e-5)


def test_the_first_transformer():
  model, params = make_model(
    scan=False, norm_placement='post', position='sinusoidal', feed_forward='relu', scale_embeddings=True
  )
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  expected = encoder_decoder.forward(exact, SOURCE, THERE, TARGET, HERE)[..., :VOCAB]
  close(logits(model, params, TARGET, context(HERE), SOURCE, context(THERE)), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('before, after', [(0, 3), (2, 0), (1, 2)])
def test_padding_changes_nothing(before, after):
  model, params = make_model()
  plain = logits(model, params, TARGET, context(HERE), SOURCE, context(np.ones((B, S), int)))

  def padded(tokens):
    wide = ((0, 0), (before, after))
    segments = np.pad(np.ones_like(tokens), wide)
    return np.pad(tokens, wide, constant_values=3), context(segments)

  target, here = padded(TARGET)
  source, there = padded(SOURCE)
  close(logits(model, params, TARGET, context(HERE), source, there), plain)
  close(
    logits(model, params, target, here, SOURCE, context(np.ones((B, S), int)))[:, before : before + T], plain
  )


@pytest.mark.slow
def test_packed_pairs_are_what_each_is_alone():
  model, params = make_model()
  lengths = (3, 4), (2, 1)  # of source and target
  source = context([[1] * 3 + [2] * 2 + [0]])
  target = context([[1] * 4 + [2] * 1])
  tokens, sources = TARGET[:1], SOURCE[:1, :6]
  packed = logits(model, params, tokens, target, sources, source)
  at = [0, 0]
  for s, t in lengths:
    alone = logits(
      model,
      params,
      tokens[:, at[1] : at[1] + t],
      context(np.ones((1, t), int)),
      sources[:, at[0] : at[0] + s],
      context(np.ones((1, s), int)),
    )
    close(packed[:, at[1] : at[1] + t], alone)
    at = [at[0] + s, at[1] + t]


def influence(model, params):
  """(of the source, of the target) on the logits: the size of the gradients [T S] and [T T] of one row."""
  source, target = (np.arange(n)[None] + first for n, first in ((S, 0), (T, S)))
  table = params['embedding']['table']

  def run(table):
    changed = params | {'embedding': {'table': table}, 'output': params['output']}
    return model.apply(
      {'params': changed}, target, context(np.ones((1, T))), None, source, context(np.ones((1, S)))
    )[0][0].sum(-1)

  by_row = np.abs(jax.jit(jax.jacrev(run))(table)).max(-1)
  return by_row[:, :S], by_row[:, S : S + T]


@pytest.mark.slow
def test_which_token_depends_on_which():
  """Every target depends on all of the source, itself and what was before, and nothing that comes later."""
  of_source, of_target = influence(*make_model(tie_embeddings=False))
  assert of_source.all()
  np.testing.assert_array_equal(of_target != 0, np.tril(np.ones((T, T), bool)))


def test_the_encoder_looks_both_ways():
  model, params = make_model()

  def first(table):
    changed = params | {'embedding': {'table': table}}
    source = np.arange(S)[None]
    return model.apply({'params': changed}, source, context(np.ones((1, S))), method='encode').x[0, 0].sum()

  assert np.abs(jax.jit(jax.grad(first))(params['embedding']['table']))[:S].max(-1).all()


@pytest.mark.slow
def test_each_part_has_its_own_mask():
  """In one layer a target depends on the source token in its own place, and that one its neighbours."""
  model, params = make_model(
    layers=1, tie_embeddings=False, encoder=dict(mask='window(1, 1)'), cross=dict(mask='window(0, 0)')
  )
  of_source, _ = influence(model, params)
  t, s = np.indices((T, S))
  np.testing.assert_array_equal(of_source != 0, abs(t - s) <= 1)


def test_each_part_has_its_own_mixer_position_and_size():
  model, params = make_model(
    tie_embeddings=False,
    position='learned',
    kv_heads=2,
    encoder=dict(mixer='linear', position='sinusoidal', layers=3, heads=2, feed_forward='swiglu'),
    cross=dict(score='bilinear', position='rope', heads=1),
  )
  here, there = (
    params[name]['layers']['block_0'] if name == 'x' else p['stack']['layers']['block_0']
    for name, p in (('stack', params), ('encoder', params['encoder']))
  )
  assert here['mixer']['k']['kernel'].shape == (2, 16, 2, 4) and 'cross' not in there
  assert there['mixer']['q']['kernel'].shape == (3, 16, 2, 8) and 'gate' in there['feed_forward']
  assert here['cross']['q']['kernel'].shape == (2, 16, 1, 16) and here['cross']['score']
  assert 'position_0' in params and 'position_0' not in params['encoder']
  assert logits(model, params, TARGET, context(HERE), SOURCE, context(THERE)).shape == (B, T, VOCAB)


def test_one_table_or_two():
  tables = {
    '/'.join(k.key for k in path)
    for path, _ in jax.tree.leaves_with_path(make_model()[1])
    if 'embedding' in path[0].key or 'output' in path[0].key
  }
  assert tables == {'embedding/table'}  # source, target and output
  model, params = make_model(source_vocab=11, tie_embeddings=False)
  assert params['source_embedding']['table'].shape == (16, 16) and params['embedding']['table'].shape == (
    24,
    16,
  )
  assert params['output']['kernel'].shape == (16, 24)
  assert logits(model, params, TARGET, context(HERE), SOURCE % 11, context(THERE)).shape == (B, T, VOCAB)


@pytest.mark.parametrize('source_vocab', [0, 11])
def test_narrow_tables(source_vocab):
  """A source with a table of its own has a projection of its own."""
  model, params = make_model(source_vocab=source_vocab, embedding_width=6)
  plain, _ = make_model(source_vocab=source_vocab, tie_embeddings=False)
  narrow = params['embedding']
  whole = {
    'embedding': {'table': narrow['table'] @ narrow['project_in']['kernel']},
    'output': {'kernel': narrow['project_out']['kernel'] @ narrow['table'].T},
  }
  if source_vocab:
    source = params['source_embedding']
    assert set(source) == {'table', 'project_in'}
    whole['source_embedding'] = {'table': source['table'] @ source['project_in']['kernel']}
  arguments = TARGET, context(HERE), SOURCE % 11, context(THERE)
  expected = logits(plain, params | whole, *arguments)
  np.testing.assert_allclose(logits(model, params, *arguments), expected, rtol=1e-4, atol=1e-4)


def test_scanned_or_not():
  (scanned, params), (unscanned, _) = make_model(), make_model(scan=False)

  def apart(p):
    layers = p['stack']['layers']
    return p | {'stack': {f'layers_{i}': jax.tree.map(lambda x: x[i], layers) for i in range(2)}}

  side_by_side = apart(params) | {'encoder': apart(params['encoder'])}
  arguments = TARGET, context(HERE), SOURCE, context(THERE)
  close(logits(unscanned, side_by_side, *arguments), logits(scanned, params, *arguments))


def test_a_memory_must_be_there():
  model, params = make_model()
  with pytest.raises(ValueError, match='needs a memory'):
    model.apply({'params': params}, TARGET, context(HERE))


@pytest.mark.parametrize(
  'model, sentence',
  [
    (
      dict(cross=dict(mixer='mamba', position='none')),
      r"config.model.cross.mixer='mamba' does not support cross-attention; use 'softmax'",
    ),
    (
      dict(cross=dict(mixer='linear', mask='full')),
      r"config.model.cross.mixer='linear' does not support cross-attention",
    ),
    (dict(cross=dict(position='learned')), r"config.model.cross.position='learned' acts on the embedding"),
    (dict(cross=dict(heads=3)), r'config.model.cross.heads=3 does not divide config.model.width=16'),
    (dict(encoder=dict(layers=0)), r'config.model.encoder.layers=0 must be at least 1'),
    (
      dict(encoder=dict(mixer='mamba', position='none')),
      r"config.model.encoder.mixer='mamba' does not support mask='full'",
    ),
    (
      dict(residual='parallel'),
      r"config.model.residual='parallel' is defined for a mixer and a feed-forward layer",
    ),
    (
      dict(residual='parallel_one_norm'),
      r"residual='parallel_one_norm' is defined for .* this block has a third branch",
    ),
    (dict(cross=dict(feed_forward='relu')), r'config.model.cross.feed_forward=.* is not a field'),
    (dict(architecture='encoder_dekoder'), r"config.model.architecture='encoder_dekoder' is unknown"),
    (dict(architecture='decoder', encoder=dict(layers=2)), r'config.model.encoder.layers=2 is not a field'),
    (
      dict(pattern=('a',), blocks=dict(a=dict(heads=2)), encoder=dict(pattern=('a',))),
      r'config.model.blocks.a is in the patterns of',
    ),
  ],
)
def test_what_cannot_be_is_refused(model, sentence):
  with pytest.raises(ValueError, match=sentence):
    Experiment(pairs.config(**model)).build_model(VOCAB)


def test_an_objective_of_another_kind_is_refused():
  config = pairs.config()
  config.objective = 'causal_lm'
  with pytest.raises(
    ValueError, match="objective='causal_lm' trains 'decoder', not .*'encoder_decoder'; use .*'seq2seq'"
  ):
    Experiment(config).build_model(VOCAB)


def test_the_command_line_reaches_the_parts():
  from tfm.commands import cli

  config = cli.resolve_with_overrides(
    complete({}),
    [
      '--config.model.architecture=encoder_decoder',
      '--config.objective=seq2seq',
      '--config.model.encoder.layers=2',
      '--config.model.cross.heads=1',
    ],
  )
  assert (config.model.encoder.layers, config.model.cross.heads, config.model.encoder.mask) == (2, 1, 'full')
  assert (
    config.model.encoder.heads == config.model.heads and config.model.cross.head_width == config.model.width
  )
