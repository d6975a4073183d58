"""The loop's own promises: a NaN stops it, the last good checkpoint stays, files are there."""

import json

import pytest

from tfm.runs import load as runs
from tfm.runs.summary import summarize_run
from tfm.runs.train import train
from tfm.training import checkpoint, metrics, progress_line


def test_a_nan_names_metric_and_step_and_leaves_the_last_good_checkpoint(tiny, tmp_path):
  """An absurd learning rate without clipping blows up after the first checkpoint."""
  config = tiny(
    **{
      'optimizer.name': 'sgd',
      'optimizer.clip': 0.0,
      'optimizer.learning_rate': 1000.0,
      'optimizer.warmup': 0,
      'optimizer.schedule': 'wsd(decay=1.0)',
      'training.steps': 20,
      'training.evaluate_every': 1,
    }
  )
  with pytest.raises(ValueError, match=r'(train|validation) \w+ is (nan|inf) at step (\d+)') as error:
    train(config, tmp_path)
  failed = int(str(error.value).partition('at step ')[2].partition(';')[0])
  checkpoints = checkpoint.Checkpoints(tmp_path)
  assert (checkpoints.latest_step() or 0) < failed
  checkpoints.close()
  run = summarize_run(tmp_path)
  assert (run.state, run.step, run.reason) == ('diverged', failed, str(error.value))


@pytest.fixture(scope='module')
def trained(tiny, tmp_path_factory):
  """The folder of a run, and what was shown of its progress."""
  folder, shown = tmp_path_factory.mktemp('trained'), []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(progress_line.Lines, 'show_progress', lambda self, progress: shown.append(progress))
    train(tiny(**{'training.profile': 2}), folder)
  return folder, shown


def test_what_a_run_leaves_behind(trained):
  folder, _ = trained
  rows = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  assert [r['step'] for r in rows if r['split'] == 'train'] == [1, 2, 3, 4, 5, 6]
  assert [r['step'] for r in rows if r['split'] == 'validation'] == [3, 6]
  assert {'loss', 'bits_per_byte', 'perplexity', 'accuracy', 'tokens'} <= rows[-1].keys()
  assert json.loads((folder / 'config.json').read_text())['model']['kv_heads'] == 4
  assert 'content hash' in (folder / 'log.txt').read_text()
  assert (folder / 'curves.png').read_bytes().startswith(b'\x89PNG')
  assert list((folder / 'profile').rglob('*.xplane.pb'))


def test_each_step_is_shown_with_the_number_of_all(trained):
  _, shown = trained
  assert sorted({(progress.step, progress.steps) for progress in shown}) == [(i, 6) for i in range(1, 7)]
  validated = [progress.validation and progress.validation[0] for progress in shown]
  assert list(dict.fromkeys(validated)) == [None, 3, 6]


def test_metrics_beyond_the_checkpoint_are_forgotten(tmp_path):
  log = metrics.MetricsLog(tmp_path, 0)
  for step in range(1, 6):
    log.write(step, 'train', dict(loss=1.0))
  log.close()
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 6, "spl')  # killed while writing
  metrics.MetricsLog(tmp_path, 3).close()
  assert [row['step'] for row in metrics.read(tmp_path / 'metrics.jsonl')] == [1, 2, 3]


@pytest.mark.parametrize('line', [b'{"step": 2, "spl\n', b'\xff\xfe\n', b'3\n', b'{"stup": 2}\n', b'\n'])
def test_a_broken_line_of_metrics_is_named(tmp_path, line):
  path, row = tmp_path / 'metrics.jsonl', b'{"step": 1, "split": "train"}\n'
  path.write_bytes(row + line + row + b'{"st')
  with pytest.raises(ValueError, match=f'{path}:2 is not a row of metrics .* delete the line'):
    metrics.read(path)
  path.write_bytes(row + b'{"st')
  assert metrics.read(path) == [dict(step=1, split='train')]


def test_evaluation_counts_every_token_once(trained):
  """Whatever the batch size, and in agreement with the corpus."""
  run = runs.load(trained[0])
  results = []
  for size in (8, 16):
    run.config.training.batch_size = size
    results.append(runs.evaluate(run, 'test').metrics)
  assert results[0]['tokens'] == results[1]['tokens']
  assert results[0]['loss'] == pytest.approx(results[1]['loss'], rel=1e-6)


@pytest.mark.parametrize(
  'field, value, reason',
  [('model.width', 2**20, 'states: .*config.mesh'), ('training.batch_size', 2**24, 'inputs of the layers: ')],
)
def test_sizes_beyond_the_memory_are_rejected_before_allocation(tiny, tmp_path, field, value, reason):
  with pytest.raises(ValueError, match=f'needs at least .* GiB on each device .*{reason}'):
    train(tiny(**{field: value}), tmp_path)
  assert not (tmp_path / 'checkpoints').exists()
