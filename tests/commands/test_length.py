"""`tfm evaluate --lengths`, on a saved run with random parameters."""

import csv
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread

from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data.tokenizers.bytes import Bytes
from tfm.runs import load
from tfm.training.checkpoint import Checkpoints
from tfm.training.state import State


@pytest.fixture(scope='module')
def run_dir(book, tmp_path_factory):
  """A run with random parameters and 16 learned positions, saved like a training run."""
  folder = tmp_path_factory.mktemp('length') / 'run'
  config = resolve_config(
    complete(
      dict(
        data=dict(source=f'text({str(book)!r})', length=16),
        training=dict(batch_size=64),
        model=dict(layers=1, width=16, heads=2, feed_forward_width=16, vocab_multiple=1, position='learned'),
      )
    )
  )
  model = load.build_model(Experiment(config), Bytes(), None)
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), *model.example(1, 4)))['params']
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.5, x.shape), x.dtype), shapes)
  checkpoints = Checkpoints(folder, keep=1)
  checkpoints.save(
    State(jnp.int32(7), params, dict(none=jnp.zeros(1)), jnp.zeros(2, jnp.uint32), None),
    dict(config=config.to_dict(), tokenizer=Bytes().state(), source_tokenizer=None, corpus=''),
    None,
  )
  checkpoints.close()
  loaded = load.load(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(load, 'load', lambda *args: loaded)
    yield folder


def tfm(capsys, *argv):
  status = cli.main(['evaluate', *argv])
  out, err = capsys.readouterr()
  return status, out, err


@pytest.mark.slow
def test_the_training_length_has_the_loss_of_the_plain_evaluation(run_dir, capsys):
  """Non-overlapping rows of that length are the rows of `concat`: the same loss on the same tokens."""
  status, out, _ = tfm(capsys, f'--workdir={run_dir}', '--split=test', '--lengths=32,16')
  assert status == 0
  lines = [line.split() for line in out.splitlines()]
  [sixteen] = [line for line in lines if line[:3] == ['nonoverlapping', '16', '16']]
  [thirty_two] = [line for line in out.splitlines() if line.split()[:3] == ['nonoverlapping', '32', '32']]
  assert thirty_two.rstrip().endswith('impossible: Learned has 16 positions, and rows have 32 tokens')
  with (run_dir / 'length.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [(r['length'], bool(r['impossible'])) for r in rows] == [('16', False), ('32', True)]
  report = json.loads((run_dir / 'length.json').read_text())
  assert (report['step'], report['split'], report['trained']) == (7, 'test', 16)
  [possible, impossible] = report['records']
  assert impossible['loss'] is None and impossible['positions'] == []
  assert sum(b['tokens'] for b in possible['positions']) == possible['tokens'] == int(rows[0]['tokens'])
  assert sixteen[4] == f'{possible["loss"]:.4f}'
  assert imread(run_dir / 'length.png').ndim == 3
  status, out, _ = tfm(capsys, f'--workdir={run_dir}', '--split=test')
  evaluation = json.loads(out)
  assert status == 0
  for name in ('tokens', 'loss', 'perplexity', 'bits_per_byte'):
    assert possible[name] == pytest.approx(evaluation[name], rel=1e-6)


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--stride=4'], '--stride requires --lengths'),
    (['--protocol=sliding'], '--protocol requires --lengths'),
    (['--targets=100'], '--targets requires --lengths'),
    (['--lengths=16,a'], '--lengths=16,a is no list of numbers from 1 on'),
    (['--lengths=0'], '--lengths=0 is no list'),
    (['--lengths=16', '--stride=4'], '--stride=4 requires --protocol=sliding'),
    (['--lengths=16', '--protocol=slide'], "protocol='slide' is unknown; "),
    (['--lengths=16', '--metric=bleu'], '--metric=bleu compares generated targets'),
    (['--lengths=16', '--split=tset'], "--split='tset' is unknown"),
    (['--lengths=16,24', '--targets=20'], 'targets=20 is less than 48'),
  ],
)
def test_invalid_arguments_are_rejected(run_dir, capsys, flags, message):
  status, out, err = tfm(capsys, f'--workdir={run_dir}', *flags)
  assert (status, out) == (2, '') and message in err, err
