"""`tfm inspect`."""

import pytest

from tfm.analysis import estimate
from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config


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
  """Words of the command line → exit status, stdout, stderr."""

  def no_text(*args):
    raise AssertionError('inspect must not read the text')

  monkeypatch.setattr(estimate.pipeline, 'open_text', no_text)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.py').write_text(CONFIG)

  def run(*words):
    status = cli.main(['inspect', '--config=a.py', *words])
    out, err = capsys.readouterr()
    return status, out, err

  return run


def line(out, start):
  """The words of the one line that starts so."""
  [found] = [row for row in out.splitlines() if row.strip().startswith(start + ' ')]
  return found.split()


def test_says_all_there_is(run, tmp_path):
  status, out, _ = run()
  assert status == 0
  assert line(out, 'model.feed_forward_width') == ['model.feed_forward_width', '=', '192']
  assert (
    line(out, 'stack/layers/block_1/mixer/k/kernel')
    == (
      'stack/layers/block_1/mixer/k/kernel 3 × 64 × 4 × 8 float32 layers embed kv_heads kv stage fsdp tensor - '
      'normal(0.02) 6,144'
    ).split()
  )
  assert line(out, 'embedding')[:2] == ['embedding', '2,048,000']
  assert line(out, 'training (3 × forward)')
  assert {line(out, kind)[0] for kind in ('parameters', 'gradients', 'optimizer', 'activations')}
  assert '…' not in out
  assert (tmp_path / 'mask.png').read_bytes().startswith(b'\x89PNG') and 'masks: mask.png' in out


@pytest.mark.parametrize(
  'words, sentence',
  [
    (
      ('--devices=4', '--config.mesh.stage=3', '--config.mesh.data=1'),
      'mesh stage=3 needs 3 devices and there are 4; the nearest valid mesh of 4 devices is data=4',
    ),
    (('--devices=0',), '--devices=0 must be at least 1'),
    (
      ('--config.mesh.data=0',),
      'mesh.data=0 must be at least 1, or -1 for the remaining devices; the nearest valid mesh of 8 devices is',
    ),
    (('--config.slices.axis=foo',), "slices.axis='foo' cannot span slices; use 'data' or 'stage'"),
  ],
)
def test_a_mesh_that_cannot_be_is_refused_with_the_nearest(run, words, sentence):
  status, out, err = run(*words)
  assert status == 2 and not out and sentence in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_any_mesh_fits_here(run):
  status, out, _ = run('--config.mesh.fsdp=64', '--config.mesh.tensor=4', '--devices=1024', '--picture=')
  assert status == 0
  assert 'one device of 1024 (data=4 fsdp=64 tensor=4), 1 rows at once' in out
  assert 'masks' not in out
  _, whole, _ = run('--config.mesh.data=1', '--picture=')

  def count(out):
    return int(line(out, 'gradients')[1].replace(',', ''))

  assert count(out) < count(whole) / 64


def test_the_mesh_says_how_many_devices(run):
  _, out, _ = run(
    '--config.mesh.data=4',
    '--config.mesh.fsdp=3',
    '--config.training.batch_size=12',
    '--config.model.width=96',
    '--picture=',
  )
  assert 'one device of 12 (data=4 fsdp=3), 1 rows at once' in out


def test_the_bubble_of_a_pipeline(run):
  """(3 - 1) / (8 + 3 - 1)."""
  words = ('--config.mesh.stage=3', '--devices=3', '--config.pipeline.microbatches=8', '--picture=')
  _, out, _ = run(*words)
  assert (
    line(out, 'bubble')[1] == '20.0%'
    and line(out, 'iterations')[1] == '10'
    and line(out, 'microbatches')[1] == '8'
  )
  assert '32 rows each' in out
  _, plain, _ = run('--config.mesh.data=1', '--picture=')
  assert 'bubble' not in plain

  def bytes_of(kind, out):
    return int(line(out, kind)[1].replace(',', ''))

  # A third of the layers, a fifth more of them for the idle time; embedding and logits are whole.
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
    (('--picture=nowhere/mask.png',), 'nowhere/mask.png'),
  ],
)
def test_refusals(run, words, sentence):
  status, _, err = run(*words)
  assert status == 2 and sentence in err


@pytest.mark.slow
def test_a_piece_of_the_loss_is_of_all_devices(run):
  """Sixteen devices have a sixteenth of its tokens each: what one has that sees as many rows in such pieces."""

  def alive(*words):
    return line(run('--config.mesh.data=-1', '--picture=', *words)[1], 'activations')[1]

  many = alive('--devices=16', '--config.training.loss_chunk=4096')
  assert many == alive('--devices=1', '--config.training.batch_size=16', '--config.training.loss_chunk=256')
  assert many != alive('--devices=16', '--config.training.loss_chunk=0')


def test_a_vocabulary_that_only_the_text_tells(monkeypatch):
  class Text:
    tokenizer = type('Tokenizer', (), dict(vocab_size=301))

  monkeypatch.setattr(estimate.pipeline, 'open_text', lambda source, tokenizer, source_tokenizer: Text)
  config = resolve_config(complete(dict(data=dict(tokenizer='char'))))
  assert estimate.vocabulary_sizes(Experiment(config)) == (301, 0)


def test_an_encoder_decoder(tmp_path, monkeypatch, capsys):
  """Its parameters, FLOPs and memory, and the masks of its three kinds of attention."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'b.py').write_text("""
def get_config(arg=''):
  return dict(objective='seq2seq', data=dict(source="parallel('a', 'b')", length=32, packing='first_fit'),
              model=dict(architecture='encoder_decoder', layers=2, width=64, heads=4, encoder=dict(mask='window(2, 2)')))
""")
  assert cli.main(['inspect', '--config=b.py', '--config.data.source_tokenizer=sentencepiece(301)']) == 0
  out = capsys.readouterr().out
  assert (
    line(out, 'source_embedding/table')[1:4] == ['384', '×', '64']
    and 'stack/layers/block_0/cross/q/kernel' in out
  )
  counted = int(line(out, 'cross')[1].replace(',', ''))
  assert counted == 2 * 4 * 64 * 64
  assert (tmp_path / 'mask.png').stat().st_size > 5_000
