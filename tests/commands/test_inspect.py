"""`tfm inspect`."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tfm.analysis import estimate
from tfm.benchmark import gpt2
from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data import pipeline
from tfm.models import memory


CONFIG = """
from ml_collections import ConfigDict
def get_config(arg=''):
  config = ConfigDict()
  config.data = dict(tokenizer='sentencepiece(32000)', length=64)
  config.model = dict(layers=6, width=64, heads=8, kv_heads=4, feed_forward='swiglu')
  config.model.pattern = ('local', 'wide')
  config.model.blocks = dict(local=dict(mask='causal & window(7)'), wide=dict())
  config.training = dict(batch_size=256)
  return config
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
  """A function that runs `tfm inspect` with arguments and returns exit status, stdout and stderr."""

  def open_no_text(*args):
    raise AssertionError('inspect must not read the text')

  monkeypatch.setattr(pipeline, 'open_text', open_no_text)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.py').write_text(CONFIG)

  def run(*words):
    status = cli.main(['inspect', '--config=a.py', *words])
    out, err = capsys.readouterr()
    return status, out, err

  return run


def find_line(out, start):
  """The words of the one line that begins with `start`."""
  [match] = [row for row in out.splitlines() if row.strip().startswith(start + ' ')]
  return match.split()


def test_prints_config_parameters_and_costs(run, tmp_path):
  status, out, _ = run()
  assert status == 0
  assert find_line(out, 'model.feed_forward_width') == ['model.feed_forward_width', '=', '192']
  assert (
    find_line(out, 'stack/layers/block_1/mixer/k/kernel')
    == (
      'stack/layers/block_1/mixer/k/kernel 3 × 64 × 4 × 8 float32 layers embed kv_heads kv stage fsdp '
      'tensor - normal(0.02) 6,144'
    ).split()
  )
  assert find_line(out, 'embedding')[:2] == ['embedding', '2,048,000']
  assert find_line(out, 'training (3 × forward)')
  assert {find_line(out, kind)[0] for kind in ('parameters', 'gradients', 'optimizer', 'activations')}
  assert '…' not in out
  files = [path.name for path in tmp_path.iterdir() if path.is_file()]
  assert files == ['a.py']  # no picture unless --to asks for one


@pytest.mark.parametrize(
  'words, sentence',
  [
    (
      ('--devices=4', '--config.mesh.stage=3', '--config.mesh.data=1'),
      'config.mesh: stage=3 needs 3 devices and there are 4; the nearest valid mesh of 4 devices is data=4',
    ),
    (('--devices=0',), '--devices=0 must be at least 1'),
    (('--devices=10000000',), '--devices=10000000 must be at most 1,048,576'),
    (
      ('--config.mesh.data=0',),
      'config.mesh.data=0 must be at least 1, or -1 for the remaining devices; '
      'the nearest valid mesh of 8 devices is',
    ),
    (('--config.slices.axis=foo',), "config.slices.axis='foo' cannot span slices; use 'data' or 'stage'"),
  ],
)
def test_an_invalid_mesh_is_rejected_with_the_nearest_valid_mesh(run, words, sentence):
  status, out, err = run(*words)
  assert status == 2 and not out and sentence in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_the_mesh_may_exceed_the_attached_devices(run):
  status, out, _ = run('--config.mesh.fsdp=64', '--config.mesh.tensor=4', '--devices=1024')
  assert status == 0
  assert 'one device of 1024 (data=4 fsdp=64 tensor=4), 1 rows at once' in out
  _, whole, _ = run('--config.mesh.data=1')

  def count(out):
    return int(find_line(out, 'gradients')[1].replace(',', ''))

  assert count(out) < count(whole) / 64


@pytest.mark.slow
def test_the_mesh_determines_the_number_of_devices(run):
  _, out, _ = run(
    '--config.mesh.data=4',
    '--config.mesh.fsdp=3',
    '--config.training.batch_size=12',
    '--config.model.width=96',
  )
  assert 'one device of 12 (data=4 fsdp=3), 1 rows at once' in out


@pytest.mark.slow
def test_the_pipeline_bubble(run):
  """Bubble fraction: (stages - 1) / (microbatches + stages - 1) = (3 - 1) / (8 + 3 - 1)."""
  words = ('--config.mesh.stage=3', '--devices=3', '--config.pipeline.microbatches=8')
  _, out, _ = run(*words)
  assert (
    find_line(out, 'bubble')[1] == '20.0%'
    and find_line(out, 'iterations')[1] == '10'
    and find_line(out, 'microbatches')[1] == '8'
  )
  assert '32 rows each' in out
  _, plain, _ = run('--config.mesh.data=1')
  assert 'bubble' not in plain

  def bytes_of(kind, out):
    return int(find_line(out, kind)[1].replace(',', ''))

  # A third of the layers, and a fifth more for the idle time; embedding and logits are not divided.
  assert bytes_of('parameters', out) < bytes_of('parameters', plain)
  assert 1 / 3 < bytes_of('activations', out) / bytes_of('activations', plain) < 1


@pytest.mark.parametrize(
  'words, sentence',
  [
    (('--config.mesh.data=3', '--devices=8'), 'needs 3 devices and there are 8'),
    (
      ('--config.mesh.fsdp=128', '--config.mesh.data=1'),
      'embedding/table into 128 shards, which do not divide its size 64',
    ),
    (('--config.model.mask=later',), "names 'later', which masks does not have"),
    (('--config.training.batch_size=12', '--devices=8'), 'use a multiple of 8'),
    (('--to=nowhere/lm.png',), 'nowhere/lm.png'),
  ],
)
def test_invalid_arguments_are_rejected(run, words, sentence):
  status, _, err = run(*words)
  assert status == 2 and sentence in err


@pytest.mark.slow
def test_a_loss_chunk_is_divided_over_all_devices(run):
  """Each of sixteen devices has a sixteenth of a chunk, like one device with chunks of that size."""

  def activations(*words):
    return find_line(run('--config.mesh.data=-1', *words)[1], 'activations')[1]

  per_device = activations('--devices=16', '--config.training.loss_chunk=4096')
  assert per_device == activations(
    '--devices=1', '--config.training.batch_size=16', '--config.training.loss_chunk=256'
  )
  assert per_device != activations('--devices=16', '--config.training.loss_chunk=0')


def test_a_vocabulary_that_depends_on_the_text_is_read_from_it(monkeypatch):
  class Text:
    tokenizer = type('Tokenizer', (), dict(vocab_size=301))

  monkeypatch.setattr(pipeline, 'open_text', lambda source, tokenizer, source_tokenizer: Text)
  config = resolve_config(complete(dict(data=dict(tokenizer='char'))))
  assert estimate.vocabulary_sizes(Experiment(config)) == (301, 0)


def test_inspect_an_encoder_decoder(tmp_path, monkeypatch, capsys):
  """Prints parameters, FLOPs and memory; draws the masks of all kinds of attention, and the schedule."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'b.py').write_text("""
def get_config(arg=''):
  return dict(objective='seq2seq', data=dict(source="parallel('a', 'b')", length=32, packing='first_fit'),
              model=dict(architecture='encoder_decoder', layers=2, width=64, heads=4,
                         encoder=dict(mask='window(2, 2)')))
""")
  words = '--config.data.source_tokenizer=sentencepiece(301)', '--config.model.position=none', '--to=b.svg'
  assert cli.main(['inspect', '--config=b.py', *words]) == 0
  out = capsys.readouterr().out
  assert (
    find_line(out, 'source_embedding/table')[1:4] == ['384', '×', '64']
    and 'stack/layers/block_0/cross/q/kernel' in out
  )
  parameters = int(find_line(out, 'cross')[1].replace(',', ''))
  assert parameters == 2 * 4 * 64 * 64
  titles = re.findall(r'<!-- ([a-z].*) -->', (tmp_path / 'b.svg').read_text('utf-8'))
  drawn = 'causal', 'encoder: window(2, 2)', 'cross: full', 'cosine'
  assert [title for title in titles if title in drawn] == [*drawn] and 'drawn: b.svg' in out


def test_a_spec_is_drawn_in_the_terminal(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert cli.main(['inspect', 'causal & window(1)', '--config.data.length=3']) == 0
  assert capsys.readouterr().out.splitlines()[:4] == ['causal & window(1)', '██····', '████··', '··████']
  assert not [*tmp_path.iterdir()]


def test_a_spec_is_drawn_into_a_picture(run, tmp_path):
  # The sizes are those of the config: 6 layers of 8 heads.
  assert run('alibi', '--to=alibi.png') == (0, 'drawn: alibi.png\n', '')
  assert (tmp_path / 'alibi.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['casual'], "tfm inspect: 'casual' names 'casual', which none of config.model.mask, "),
    ([''], 'tfm inspect: a spec is a string such as'),
    (['causal', '--to=nowhere/mask.png'], 'nowhere/mask.png'),
    (['causal', '--to=mask.nonsense'], 'nonsense'),
    (['causal', '--devices=8'], '--devices=8 is of a config'),
  ],
)
def test_a_spec_that_cannot_be_drawn_is_rejected(capsys, words, sentence):
  assert cli.main(['inspect', *words]) == 2
  out, err = capsys.readouterr()
  assert not out and sentence in err and len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  'rows, fields', [(12, {}), (4, dict(length=1024)), (12, dict(vocab=259, remat='full'))], ids=str
)
def test_the_process_that_trains_has_the_predicted_peak(rows, fields):
  """A process of its own on one CPU device, within 10 %."""
  if sys.platform != 'linux':
    pytest.skip('resident memory was measured on Linux')
  experiment = Experiment(gpt2.make_config(rows, **fields))
  vocab = fields.get('vocab', gpt2.SHAPE['vocab'])
  boxed = estimate.abstract_state(experiment, experiment.build_model(vocab))
  mesh = estimate.abstract_mesh(experiment.config, 1)
  kinds = estimate.memory_by_kind(experiment, vocab, 0, boxed, mesh, experiment.rules)
  predicted = memory.resident_peak(sum(count for _, count, _ in kinds)) / 2**20
  # By a small process between: Linux counts what the parent had when it started this one.
  code = 'import subprocess, sys; subprocess.run(sys.argv[1:], check=True)'
  measurement = [sys.executable, '-m', 'tfm.benchmark.gpt2', 'training', str(rows)]
  found = subprocess.run(
    [sys.executable, '-c', code, *measurement, *(f'{name}={value}' for name, value in fields.items())],
    env=os.environ | dict(XLA_FLAGS='', JAX_PLATFORMS='cpu'),
    capture_output=True,
    text=True,
    check=True,
  )
  resident = json.loads(found.stdout)['peak_memory_mib']
  print(f'{predicted:,.0f} MiB predicted, {resident:,.0f} measured')
  assert abs(predicted - resident) < 0.1 * resident


@pytest.mark.slow
def test_a_run_that_saves_has_the_predicted_peak(tmp_path, capsys):
  """`tfm train`, with a checkpoint beside its steps, within 10 %."""
  if sys.platform != 'linux':
    pytest.skip('resident memory was measured on Linux')
  (tmp_path / 'text.txt').write_text(' '.join(map(str, range(100_000))))
  fields = {
    'data.source': f'text("{tmp_path / "text.txt"}")',
    'data.length': 256,
    'model.layers': 6,
    'model.width': 384,
    'model.heads': 6,
    'model.remat': 'full',
    'training.batch_size': 12,
    'training.steps': 4,
    'training.save_every': 'steps(2)',
    'training.evaluation_batches': 1,
  }
  config = pathlib.Path(__file__).parents[2] / 'configs' / 'lm.py'
  options = [f'--config={config}', *(f'--config.{field}={value}' for field, value in fields.items())]
  assert cli.main(['inspect', '--devices=1', *options]) == 0
  predicted = int(re.search(r'process, saving +([\d,]+)', capsys.readouterr().out)[1].replace(',', ''))
  # By a small process between, as above.
  code = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
  found = subprocess.run(
    [
      sys.executable,
      '-c',
      code,
      sys.executable,
      '-m',
      'tfm',
      'train',
      f'--workdir={tmp_path / "run"}',
      *options,
    ],
    env=os.environ | dict(XLA_FLAGS='', JAX_PLATFORMS='cpu'),
    capture_output=True,
    text=True,
    check=True,
  )
  resident = int(found.stdout)
  print(f'{predicted / 2**20:,.0f} MiB predicted, {resident / 2**20:,.0f} measured')
  assert abs(predicted - resident) < 0.1 * resident
