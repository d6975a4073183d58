"""Measures agree with the commands that compute the same numbers."""

import dataclasses

import jax
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.evaluation.attention_maps import AttentionKind
from tfm.evaluation.loss_slices import find_repeats
from tfm.mixers.protocol import Context
from tfm.models import flops
from tfm.runs import load as runs
from tfm.runs.slices import evaluate_slices
from tfm.runs.train import train
from tfm.studies import store
from tfm.studies.arms import build_model
from tfm.studies.measures import induction
from tfm.studies.measures.protocol import build_measure


@pytest.fixture(scope='module')
def run(tiny_run):
  return runs.load(tiny_run)


def measure_run(text, run, params=None):
  """metric → value, or metric → x → value."""
  found = {}
  for value in build_measure(text).prepare(run)(run.params if params is None else params):
    assert value.value is not None and not value.why
    if value.x is None:
      found[value.metric] = value.value
    else:
      found.setdefault(value.metric, {})[value.x] = value.value
  return found


@pytest.mark.slow
def test_split_equals_tfm_evaluate(run):
  assert measure_run('split("validation")', run) == {
    f'validation_{name}': x for name, x in runs.evaluate(run, 'validation').metrics.items()
  }
  doubled = measure_run('split("validation")', run, jax.tree.map(lambda x: 2 * x, run.params))
  assert doubled['validation_loss'] != measure_run('split("validation")', run)['validation_loss']


@pytest.mark.slow
def test_decoding_counts_cache_bytes(run):
  found = measure_run('decoding(rows=2, context=16, tokens=4)', run)
  # 2 layers of keys and values of 32 channels in float32, and where each token stands.
  assert found['cache_bytes_per_token'] == 2 * (2 * 32 * 4 + 12) and found['decoding_tokens_per_second'] > 0


@pytest.mark.slow
def test_step_reports_time_memory_and_flops(run):
  found = measure_run('step((16, 64), rounds=1)', run)
  assert found['step_seconds'] > 0
  # Parameters, two moments, and activations.
  assert found['step_bytes'] > 3 * 4 * sum(x.size for x in jax.tree.leaves(run.params))
  assert found['flops_per_token_at_length'] == {
    L: flops.training_flops_per_token(run.model, L) for L in (16, 64)
  }
  assert (
    set(found['step_seconds_per_token_at_length']) == set(found['step_bytes_per_token_at_length']) == {16, 64}
  )


def test_loss_slices_equal_tfm_evaluate(run):
  found = measure_run('loss_slices(ngram=3)', run)
  slices = evaluate_slices(run, 'validation', 3, run.config.training.evaluation_batches)
  assert found.pop('loss_at_position') == {
    part.first: part.loss for part in slices if part.name == 'position'
  }
  assert found == {f'loss_in_{part.name}': part.loss for part in slices if part.name != 'position'}


@pytest.mark.parametrize(
  'scaling, changes', [('linear(factor=1)', False), ('yarn(factor=2, original=32)', True)]
)
def test_a_scaling_after_training(run, scaling, changes):
  plain = measure_run('lengths((32, 64), targets=256)', run)['loss_at_length']
  [(name, scaled)] = [
    (name, values)
    for name, values in measure_run(f'lengths((32, 64), targets=256, scaling="{scaling}")', run).items()
    if name.endswith('_at_length')
  ]
  assert name == f'{scaling.partition("(")[0]}_loss_at_length'
  assert (scaled != plain) == changes


def test_positions_without_rotation_have_no_scaling(run):
  config = run.config.copy_and_resolve_references()
  config.model.position = 'alibi'
  alibi = dataclasses.replace(run, experiment=Experiment(config))
  measure = build_measure('lengths((64,), scaling="yarn(factor=2, original=32)")')
  [value] = measure.prepare(alibi)(run.params)
  assert value.value is None and value.why == "config.model.position='alibi' has no scaling"


def test_prefix_matching_of_a_head_by_hand(run, monkeypatch):
  """One of two heads attends to what followed the first reading of three tokens, but for a tenth."""
  weights = np.zeros((1, 2, 6, 6))
  weights[:, 0, :, 0] = 1
  for query in (3, 4):  # the first and second token again; the third has no successor yet
    weights[:, 1, query, query - 2] = 0.9
  monkeypatch.setattr(induction, 'compute_attention', lambda *_: {})
  monkeypatch.setattr(AttentionKind, 'weights', lambda *_: [None, weights])
  tokens = np.array([[4, 5, 6, 4, 5, 6]] * 3)
  best, by_layer = build_measure('induction(length=3, rows=3)').match_readings(run, run.params, tokens)
  assert best.value == by_layer.value == pytest.approx(0.9) and by_layer.x == 1


def test_successors_of_a_text_equal_a_loop():
  """Tokens of few kinds in two documents and padding; every third target is not counted."""
  draw = np.random.default_rng(0)
  tokens = draw.integers(3, size=(4, 25))
  segments = np.array([[1] * 9 + [2] * 11 + [0] * 4] * 4)
  batch = dict(inputs=tokens[:, :-1], targets=tokens[:, 1:], segments=segments)
  counted = (segments > 0) & (np.arange(24) % 3 > 0)
  found = induction.find_successors(batch, counted)
  for b, t, s in np.ndindex(found.shape):
    expected = (
      counted[b, t]
      and 0 < s <= t
      and segments[b, s - 1] == segments[b, s] == segments[b, t]
      and tokens[b, s - 1] == tokens[b, t]
      and tokens[b, s] == tokens[b, t + 1]
    )
    assert found[b, t, s] == expected, (b, t, s)
  repeated = find_repeats(**batch, n=2)
  np.testing.assert_array_equal(found.any(-1), repeated & counted)  # as the slices of the loss have it


def test_induction_of_a_run_that_has_not_learnt_it(run):
  found = measure_run('induction(length=8, rows=4)', run)
  for metric in ('prefix_matching', 'prefix_matching_of_text'):
    assert 0 < found[metric] == max(found[f'{metric}_by_layer'].values()) < 0.5
  assert abs(found['loss_of_first_reading'] - found['loss_of_second_reading']) < 1


def test_random_tokens_are_of_those_in_the_texts(run, monkeypatch):
  """One token that no text has would have no meaning for a model."""
  read = []
  monkeypatch.setattr(
    induction.Induction, 'match_readings', lambda self, run, params, tokens: read.append(tokens) or []
  )
  measure_run('induction(length=8, rows=4)', run)
  [tokens] = read
  batch = build_measure('induction(rows=4)').read_texts(run)
  assert {*tokens.flat} <= {*batch['inputs'][batch['segments'] > 0]} and len({*tokens.flat}) > 8
  np.testing.assert_array_equal(tokens[:, :8], tokens[:, 8:])


def test_induction_refuses_an_objective_without_next_tokens(run):
  config = run.config.copy_and_resolve_references()
  config.objective = 'classification(10)'
  experiment = Experiment(config)
  with pytest.raises(
    ValueError, match='predicts each next token, and Classification does not; use causal_lm'
  ):
    build_measure('induction(length=8)').validate(experiment, run.model)


def test_prefix_matching_of_texts_adds_up_all_successors(run, monkeypatch):
  """A head that attends to all tokens alike gives each of them one part of the text that is read."""
  monkeypatch.setattr(induction, 'LONGEST', 20)
  monkeypatch.setattr(induction, 'compute_attention', lambda *_: {})
  monkeypatch.setattr(AttentionKind, 'weights', lambda *_: [np.full((1, 2, 20, 20), 1 / 20)])
  batch = build_measure('induction(rows=4)').read_texts(run)
  found = induction.find_successors(batch, batch['segments'] > 0)
  best, _ = induction.match_text(run, run.params, batch)
  assert found.shape == (4, 20, 20) and found.any()
  assert best.value == pytest.approx(found.sum(-1)[found.any(-1)].mean() / 20)


def test_texts_without_a_repeated_bigram_have_no_prefix_matching(run):
  batch = build_measure('induction(rows=2)').read_texts(run)
  batch['inputs'] = np.arange(batch['inputs'].size).reshape(batch['inputs'].shape)
  [value] = induction.match_text(run, run.params, batch)
  assert value.value is None and 'no counted target ends a bigram' in value.why


def test_generation_requires_an_encoder_decoder(run):
  with pytest.raises(ValueError, match="needs an encoder-decoder, and config.model.architecture='decoder'"):
    build_measure('generation').prepare(run)


@pytest.mark.slow
def test_generation_equals_tfm_evaluate(tiny, tmp_path):
  for side in ('a', 'b'):
    (tmp_path / side).write_text(''.join(f'{n}\n' for n in range(300)))
  train(
    tiny(
      **{
        'objective': 'seq2seq',
        'data.source': f'parallel({str(tmp_path / "a")!r}, {str(tmp_path / "b")!r})',
        'data.length': 8,
        'data.packing': 'first_fit',
        'model.architecture': 'encoder_decoder',
        'model.layers': 1,
        'model.mask': None,
        'training.steps': 2,
      }
    ),
    tmp_path / 'run',
  )
  run = runs.load(tmp_path / 'run')
  pairs, found = runs.translate_split(run, 'test')
  texts = {i: result[0].text for i, result in found}
  same = sum(texts[i] == reference for i, (_, reference) in enumerate(pairs)) / len(pairs)
  assert measure_run('generation("exact")', run)['test_exact'] == pytest.approx(100 * same)
  assert -1 < measure_run('initialization', run)['token_cosine_at_start'] < 1


def test_an_unknown_measure_is_rejected():
  with pytest.raises(ValueError, match="'splits'.*did you mean 'split'"):
    build_measure('splits')


@pytest.mark.slow
def test_needle_covers_depths_and_lengths(tiny, tmp_path):
  train(
    tiny(
      **{
        'objective': 'answers',
        'data.source': 'needle(length=180, longer=None, digits=1)',
        'data.length': 181,
        'data.packing': 'answered',
        'model.position': 'learned',
        'training.steps': 2,
        'training.batch_size': 8,
      }
    ),
    tmp_path,
  )
  run = runs.load(tmp_path)
  measure = build_measure('needle((170, 180, 360), depths=(0.0, 1.0), texts=16)').prepare(run)
  found = {(value.metric, value.x): value for value in measure(run.params)}
  assert {*found} == {(f'exact_in_{L}_at_depth', depth) for L in (170, 180, 360) for depth in (0.0, 1.0)}
  for (metric, _), value in found.items():
    if '360' in metric:
      assert value.value is None and 'Learned has 181 positions' in value.why
    else:
      assert value.value in {i / 16 for i in range(17)} and not value.why


def test_needle_requires_a_needle_run(run):
  with pytest.raises(ValueError, match="measures='needle' needs a run that trains on a needle"):
    build_measure('needle').prepare(run)


@pytest.mark.slow
def test_parts_add_up_to_the_validation(run, tiny_run):
  """Whatever their number: tokens add up, and the mean loss by tokens is that of the last validation."""
  expected = store.final_metrics(tiny_run)
  for count in (1, 2, 64):
    found = measure_run(f'parts(count={count})', run)
    tokens, losses = found['tokens_in_part'], found['loss_in_part']
    assert 0 < len(tokens) <= count and tokens.keys() == losses.keys()
    assert sum(tokens.values()) == expected['tokens']
    total = sum(losses[part] * tokens[part] for part in tokens)
    assert total / sum(tokens.values()) == pytest.approx(expected['loss'], rel=1e-5)
  assert len({*losses.values()}) == len(losses) == 2  # no more than there are batches
  with pytest.raises(ValueError, match="'parts..bleu'.*names no metric of the validation; known: loss"):
    build_measure('parts("bleu")').metric_names(['loss', 'accuracy'])


@pytest.mark.slow
def test_over_training_measures_every_checkpoint(tiny, tmp_path):
  """At each step what the measure gives for its checkpoint; and as many must be kept as are saved."""
  config = tiny()
  config.training.update(steps=6, evaluate_every=2, keep_checkpoints=2)
  text = 'over_training("induction(length=8, rows=4)")'
  with pytest.raises(ValueError, match='saves 3, and config.training.keep_checkpoints=2; set it to 3'):
    build_measure(text).validate(experiment := Experiment(config), build_model(experiment))
  config.training.keep_checkpoints = 3
  train(config, tmp_path)
  run, measure = runs.load(tmp_path), build_measure(text)
  found = measure.measure_run(measure.prepare(run), run, tmp_path)
  assert {value.metric for value in found} == {f'{name}_at_step' for name in measure.other.metric_names(())}
  losses = {value.x: value.value for value in found if value.metric == 'loss_of_first_reading_at_step'}
  assert losses == {
    step: measure_run(measure.measure, runs.load(tmp_path, str(step)))['loss_of_first_reading']
    for step in (2, 4, 6)
  }
  assert len({*losses.values()}) == 3
  with pytest.raises(ValueError, match='is itself measured over training'):
    build_measure(f"over_training('{text}')")


@pytest.mark.slow
def test_valid_symbols_of_a_run_by_a_loop(tiny, tmp_path):
  """Text by text, without padding."""
  config = tiny(
    **{
      'objective': 'answers',
      'data.packing': 'answered',
      'data.source': 'regbench(states=5, symbols=6, strings=6, length=4, held_out=4)',
      'data.tokenizer': 'words',
      'data.length': 32,
      'training.steps': 20,
      'optimizer.learning_rate': 1e-2,
    }
  )
  train(config, tmp_path)
  run, right = runs.load(tmp_path), {}
  for index in range(4):
    automaton, strings = run.experiment.source.document('validation', index)
    tokens = run.encode(' '.join(' '.join(['|', *string]) for string in strings))
    logits, _ = run.model.apply({'params': run.params}, tokens[None], Context.contiguous(tokens[None]))
    ids = {symbol: run.tokenizer.encode(f'| {symbol}')[-1] for symbol in (f's{i}' for i in range(1, 7))}
    before = len(tokens) - len(' '.join(' '.join(['|', *string]) for string in strings).split())
    for number, string in enumerate(strings, 1):
      state = 0
      for symbol in string:
        likeliest = max(ids, key=lambda name: logits[0, before, ids[name]])
        right.setdefault(number, []).append(likeliest in automaton[state])
        state, before = automaton[state][symbol], before + 1
      before += 1
  found = measure_run('valid_symbols(texts=4, rows=3)', run)
  assert found['valid_symbols'] == pytest.approx(np.mean(sum(right.values(), [])))
  assert found['valid_symbols_at_string'] == pytest.approx({i: np.mean(right[i]) for i in (1, 2, 3)})
  assert 0 < found['valid_symbols'] < 1


@pytest.mark.slow
def test_valid_symbols_requires_languages_and_whole_symbols(run, tiny, tmp_path):
  with pytest.raises(ValueError, match='needs a run that trains on languages, and config.data.source='):
    build_measure('valid_symbols').prepare(run)
  config = tiny(
    **{
      'objective': 'answers',
      'data.packing': 'answered',
      'data.source': 'regbench(strings=2, length=2, held_out=100)',
      'training.steps': 1,
    }
  )
  train(config, tmp_path)
  with pytest.raises(ValueError, match="splits the symbols of regbench.*use 'words'"):
    build_measure('valid_symbols').prepare(runs.load(tmp_path))
  with pytest.raises(ValueError, match='reads more texts than .* holds out, 100'):
    build_measure('valid_symbols(texts=101)').prepare(runs.load(tmp_path))
