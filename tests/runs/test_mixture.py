"""A run on a mixture: losses of every source, and a resume in the middle of it."""

import pytest

from tfm.commands import cli
from tfm.runs import load
from tfm.runs.train import train
from tfm.training.metrics import read


pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def mixture(book, tmp_path_factory):
  """The fields of a run on two sources, one of which is so small that it is repeated."""
  small = tmp_path_factory.mktemp('small') / 'small.txt'
  small.write_text('\n\n'.join(f'{i}: {"0123456789" * 3}' for i in range(120)))
  return {
    'data.source': 'mix(book=0.6, digits=0.4)',
    'data.sources.book': f'text({str(book)!r})',
    'data.sources.digits': f'text({str(small)!r})',
    'optimizer.schedule': 'constant',
  }


@pytest.fixture(scope='module')
def unbroken(tiny, mixture, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('unbroken')
  train(tiny(**mixture), workdir)
  return workdir


def numbers(workdir):
  """Every logged number that is no measurement, and the hash of every batch."""
  measured = 'tokens_per_second', 'goodput', 'step_seconds', 'data_seconds', 'memory_bytes'
  return [{k: v for k, v in row.items() if k not in measured} for row in read(workdir / 'metrics.jsonl')]


def test_every_evaluation_has_the_loss_of_each_source(unbroken):
  rows = [row for row in numbers(unbroken) if row['split'] == 'validation']
  assert [row['step'] for row in rows] == [3, 6]
  for row in rows:
    assert row['loss'] == pytest.approx(0.6 * row['loss/book'] + 0.4 * row['loss/digits'], rel=1e-6)
    assert row['loss/book'] != row['loss/digits']


def test_a_run_is_evaluated_on_all_sources_and_on_one(unbroken):
  run = load.load(unbroken)
  values = load.evaluate(run, 'test').metrics
  assert set(values) == {*'loss perplexity accuracy tokens bits_per_byte loss/book loss/digits'.split()}
  tokens = 0
  for name in ('book', 'digits'):
    one = load.evaluate(run, f'test/{name}').metrics
    assert one['loss'] == values[f'loss/{name}']
    tokens += one['tokens']
  assert values['tokens'] == tokens
  with pytest.raises(ValueError, match="mixes no 'bok'; .* did you mean 'book'"):
    load.evaluate(run, 'test/bok')
  with pytest.raises(
    ValueError, match='validation is a mixture, .* add one source to the split: /book or /digits'
  ):
    load.evaluate_lengths(run, 'validation', [16])
  [record] = load.evaluate_lengths(run, 'validation/book', [16])
  assert record.tokens and not record.impossible


def test_a_resume_in_the_middle_is_the_same_run(tiny, mixture, unbroken, tmp_path):
  train(tiny(**mixture, **{'training.steps': 3}), tmp_path)
  assert numbers(tmp_path) == [row for row in numbers(unbroken) if row['step'] <= 3]
  metadata = load.checkpoint_metadata(tmp_path)
  assert metadata['data'] == {'next_index': 3}  # one number, for all sources
  train(tiny(**mixture), tmp_path)
  assert numbers(tmp_path) == numbers(unbroken)


def test_prepared_tokens_are_the_same_run(tiny, mixture, unbroken, tmp_path):
  words = [f'--config.{path}={value}' for path, value in mixture.items()]
  (tmp_path / 'config.py').write_text('def get_config(arg=""):\n  return {}\n')
  command = ['prepare', f'--config={tmp_path}/config.py', f'--to={tmp_path}/tokens', '--shard_bytes=20000']
  assert cli.main([*command, *words]) == 0
  prepared = {f'data.sources.{name}': f"prepared('{tmp_path}/tokens/{name}')" for name in ('book', 'digits')}
  train(tiny(**mixture | prepared), tmp_path / 'run')
  assert numbers(tmp_path / 'run') == numbers(unbroken)
  assert load.checkpoint_metadata(tmp_path / 'run')['corpus'] == load.checkpoint_metadata(unbroken)['corpus']
  assert cli.main([*command, *words]) == 2  # the folder is not empty


def test_other_weights_or_texts_are_another_run(tiny, mixture, unbroken, tmp_path):
  other = mixture | {'data.source': 'mix(book=0.5, digits=0.5)'}
  with pytest.raises(ValueError, match=r"data.source: 'mix\(book=0.6, digits=0.4\)' → 'mix\(book=0.5"):
    train(tiny(**other), unbroken)
  changed = tmp_path / 'changed.txt'
  changed.write_text('\n\n'.join(f'{i}: other' for i in range(2000)))
  with pytest.raises(ValueError, match='data.sources.digits: '):
    train(tiny(**mixture | {'data.sources.digits': f'text({str(changed)!r})'}), unbroken)
