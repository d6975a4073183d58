"""Measures agree with the commands that compute the same numbers."""

import jax
import pytest

from tfm.models import flops
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.studies import store
from tfm.studies.measures.protocol import build_measure


@pytest.fixture(scope='module')
def folder(tiny, tmp_path_factory):
  folder = tmp_path_factory.mktemp('measured')
  train(tiny(), folder)
  return folder


@pytest.fixture(scope='module')
def run(folder):
  return runs.load(folder)


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
    f'validation_{name}': x for name, x in runs.evaluate(run, 'validation').items()
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
def test_parts_add_up_to_the_validation(run, folder):
  """Whatever their number: tokens add up, and the mean loss by tokens is that of the last validation."""
  expected = store.final_metrics(folder)
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
