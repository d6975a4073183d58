"""`tfm attend`, on saved runs with random parameters."""

import base64
import json
import pathlib
import re

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
from tfm.conformance import collect
from tfm.data.tokenizers.bytes import Bytes
from tfm.runs import load as run
from tfm.training.checkpoint import Checkpoints
from tfm.training.state import State


TINY = dict(width=16, heads=2, feed_forward_width=16, vocab_multiple=1)


def save_run(folder, **fields):
  """Saves a run with random parameters like a training run."""
  config = resolve_config(complete(fields | dict(model=TINY | fields['model'])))
  model = run.build_model(Experiment(config), Bytes(), None)
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
  return folder


@pytest.fixture(scope='module')
def pair(tmp_path_factory):
  """An encoder-decoder whose encoder has more layers than its decoder."""
  return save_run(
    tmp_path_factory.mktemp('pair') / 'run',
    objective='seq2seq',
    data=dict(source='numbers("en", "de", pairs=2000)', packing='first_fit', length=32),
    decoding=dict(max_extra_tokens=3),
    model=dict(architecture='encoder_decoder', layers=1, scan=False, encoder=dict(layers=2)),
  )


@pytest.fixture(scope='module')
def mixed(tmp_path_factory):
  """A decoder with 24 learned positions whose second layer has no attention weights."""
  return save_run(
    tmp_path_factory.mktemp('mixed') / 'run',
    data=dict(length=24),
    model=dict(
      layers=3,
      pattern=('a', 'b'),
      blocks=dict(a=dict(position='learned'), b=dict(mixer='convolution', position='none')),
    ),
  )


@pytest.fixture(scope='module', autouse=True)
def load_each_run_once(pair, mixed):
  real_load, loaded = run.load, {str(path): run.load(path) for path in (pair, mixed)}

  def load(path, step, average, override):
    return loaded[path] if step == 'last' else real_load(path, step, average)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run, 'load', load)
    yield


def tfm(capsys, workdir, *flags):
  status = cli.main(['attend', f'--workdir={workdir}', *flags])
  out, err = capsys.readouterr()
  return status, out, err


def read_page(folder):
  """Reads the attention maps of a page: name → (queries, keys, layers, weights)."""
  [data] = re.findall(r'id="data">(.*?)</script>', (folder / 'index.html').read_text(encoding='utf-8'), re.S)
  data = json.loads(data)

  def weights(kind):
    read = np.frombuffer(base64.b64decode(kind['weights']), '<u2') / data['levels']
    return read.reshape(-1, len(kind['queries']), len(kind['keys']))

  return {k['kind']: (k['queries'], k['keys'], k['layers'], weights(k)) for k in data['kinds']}


@pytest.mark.slow
def test_an_encoder_decoder_shows_the_attention_of_its_own_translation(pair, capsys):
  status, out, _ = tfm(capsys, pair, '--input=two')
  assert status == 0
  first, *lines = out.splitlines()
  assert lines == [
    f'{pair}/attention/encoder.png: layers 0, 1, heads 0, 1',
    f'{pair}/attention/decoder.png: layers 0, heads 0, 1',
    f'{pair}/attention/cross.png: layers 0, heads 0, 1',
    f'{pair}/attention/index.html: page of all maps',
  ]
  found = read_page(pair / 'attention')
  assert list(found) == ['encoder', 'decoder', 'cross']
  source, written = found['encoder'][0], found['decoder'][0]
  assert source == [*'two', '<eos>'] and written[0] == '<eos>' and len(written) <= 1 + 4 + 3
  assert found['cross'][:3] == (written, source, [[0, [0, 1]]])
  for queries, keys, _, weights in found.values():
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
  assert (np.triu(found['decoder'][3], 1) == 0).all()
  assert all(imread(pair / 'attention' / f'{kind}.png').ndim == 3 for kind in found)
  # tfm generate writes the same translation.
  assert cli.main(['generate', f'--workdir={pair}', '--prompt=two']) == 0
  assert first == f'translation: {capsys.readouterr().out}'.rstrip('\n')


@pytest.mark.slow
def test_a_target_is_read_from_a_file(pair, capsys, tmp_path):
  (tmp_path / 'target').write_text('a b\n', encoding='utf-8')
  flags = ['--input=two', f'--target={tmp_path}/target', f'--to={tmp_path}/maps/here', '--heads=0']
  status, out, _ = tfm(capsys, pair, *flags)
  assert status == 0 and 'translation' not in out
  found = read_page(tmp_path / 'maps' / 'here')
  assert {name: kind[2] for name, kind in found.items()} == dict(
    encoder=[[0, [0]], [1, [0]]], decoder=[[0, [0]]], cross=[[0, [0]]]
  )
  assert found['decoder'][0] == ['<eos>', 'a', '␣', 'b'] == found['cross'][0]
  status, out, _ = tfm(capsys, pair, *flags, '--layers=1')
  assert status == 0 and list(read_page(tmp_path / 'maps' / 'here')) == ['encoder']
  assert all(f'{name}: none of the selected layers and heads' in out for name in ('decoder', 'cross'))


@pytest.mark.slow
def test_a_decoder_lists_the_layers_without_attention_weights(mixed, capsys):
  status, out, _ = tfm(capsys, mixed, '--input=</script>', '--heads=1')
  assert status == 0 and out.splitlines() == [
    f'{mixed}/attention/decoder.png: layers 0, 2, heads 1',
    "decoder: layers 1 mix by 'convolution', which has no attention weights",
    f'{mixed}/attention/index.html: page of all maps',
  ]
  [(queries, keys, layers, weights)] = read_page(mixed / 'attention').values()
  assert queries == keys == ['<eos>', *'</script>'] and layers == [[0, [1]], [2, [1]]]
  assert weights.shape == (2, 10, 10)


@pytest.mark.parametrize(
  'which, flags, message',
  [
    ('pair', ['--layers=0,2'], '--layers: layer 2 has no attention weights; use some of 0, 1'),
    ('pair', ['--heads=2'], '--heads: these layers have no head 2; use some of 0, 1'),
    ('pair', ['--layers=0,-1'], '--layers=0,-1 is no list of numbers from 0 on; use, for example, 0,2,5'),
    ('pair', ['--heads='], '--heads= is no list of numbers'),
    ('pair', ['--target=\udcff'], "--target='\\udcff' is not UTF-8 text"),
    ('pair', ['--target=' + 600 * 'a'], 'the target has 601 tokens, and a map shows at most 512; shorten it'),
    ('pair', ['--step=8'], "use 'last', 'best' or one of [7]"),
    ('mixed', ['--layers=1'], '--layers: layer 1 has no attention weights; use some of 0, 2'),
    ('mixed', ['--target=b'], 'a target requires an encoder-decoder'),
    ('mixed', ['--input=' + 24 * 'a'], 'the text has 25 tokens, and Learned has 24 positions; shorten it'),
  ],
)
def test_invalid_arguments_are_rejected(request, capsys, which, flags, message):
  given = [] if flags[0].startswith('--input=') else ['--input=a']
  status, out, err = tfm(capsys, request.getfixturevalue(which), *given, *flags)
  assert (status, out) == (2, '') and message in err and len(err.strip().splitlines()) == 1


def test_a_model_without_attention_weights_is_rejected(capsys, monkeypatch, tmp_path):
  """The error precedes any computation and lists the mixers that have attention weights."""

  class Loaded:
    tokenizer = Bytes()
    model = run.build_model(
      Experiment(
        resolve_config(
          complete(
            dict(data=dict(length=24), model=TINY | dict(layers=1, mixer='recurrent', position='none'))
          )
        )
      ),
      Bytes(),
      None,
    )

  monkeypatch.setattr(run, 'load', lambda *args: Loaded)
  monkeypatch.chdir(tmp_path)
  pathlib.Path('here', 'checkpoints').mkdir(parents=True)
  status, out, err = tfm(capsys, 'here', '--input=a')
  message = (
    'tfm attend: --workdir=here holds a model with recurrent, without attention weights; use a model with '
  )
  assert (status, out) == (2, '') and err.startswith(message)
  named = err.removeprefix(message).strip().split(', ')
  assert 'softmax' in named and 'recurrent' not in named and set(named) <= set(collect.variants('mixer'))
