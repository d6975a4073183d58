"""One object for runs and published checkpoints: it computes what the commands and the model compute."""

import json

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tfm
from tfm.commands import cli
from tfm.data.tokenizers.bytes import Bytes
from tfm.hf import export
from tfm.hf.loaded_model import LoadedModel
from tfm.mixers.protocol import Context
from tfm.parallel import mesh as meshes
from tfm.runs.train import train


pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def workdir(tiny, tmp_path_factory):
  """A run of a decoder with 40 learned positions."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  train(tiny(**{'model.position': 'learned(rows=40)'}), folder)
  return folder


@pytest.fixture(scope='module')
def run(workdir):
  return tfm.load(workdir)


def untrained(tokenizer=Bytes(), **fields):
  """A model with random parameters, as if it were loaded."""
  built = tfm.build(fields, vocab=tokenizer.vocab_size)
  mesh = meshes.make(dict(data=1), jax.devices()[:1])
  params = jax.tree.map(lambda x: 3 * x, built.init(jax.random.key(0)))
  return LoadedModel(
    built.experiment, built.model, params, tokenizer, mesh, built.experiment.rules, 0, 'data'
  )


def command(capsys, *words):
  assert cli.main(words) == 0
  return capsys.readouterr().out


def test_logits_of_a_text_are_those_of_its_ids(run):
  ids = np.array([[256, *b'Now is']])
  context = Context.contiguous(ids)
  expected, _ = jax.jit(lambda params: run.model.apply({'params': params}, ids, context))(run.params)
  np.testing.assert_allclose(run.logits('Now is'), expected, atol=1e-5)
  np.testing.assert_allclose(run.logits(ids), expected, atol=1e-5)
  together = run.logits(['Now is', 'No'])
  assert together.shape == (2, 7, 257)
  np.testing.assert_allclose(together[0], expected[0], atol=1e-5)
  np.testing.assert_allclose(together[1, :3], run.logits('No')[0], atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('flags, settings', [
  (['--temperature=0'], {}),
  (['--temperature=0.7', '--top_k=9', '--seed=3'], dict(temperature=0.7, top_k=9, seed=3)),
  (['--beams=3', '--penalty=power(1.0)', '--stopping=likely'], dict(num_beams=3)),
])  # fmt: skip
def test_texts_continue_as_by_the_command(run, workdir, capsys, flags, settings):
  printed = command(capsys, 'generate', f'--workdir={workdir}', '--prompt=Now', '--max_tokens=8', *flags)
  text = run.generate('Now', max_new_tokens=8, **settings)
  assert text.startswith('Now') and printed == f'{text}\n'
  assert run.generate(['Now'], max_new_tokens=8, **settings) == [text]


def test_ids_continue_without_their_prompt(run):
  text = run.generate('Now', max_new_tokens=8, temperature=1.0)
  ids = run.generate(np.array([[256, *b'Now']]), max_new_tokens=8, temperature=1.0)
  assert ids.shape == (1, 8) and f'Now{run.tokenizer.decode(ids[0])}' == text


def test_a_text_is_as_long_as_the_positions_by_default(run, workdir, capsys):
  [ids] = run.generate(np.array([[256, *b'Now']]))
  assert len(ids) == 40 + 1 - 4  # the last token is not read
  with pytest.raises(ValueError, match='use at most max_tokens=37'):
    run.generate('Now', max_new_tokens=38)
  for flags, settings in (
    (['--temperature=0'], {}),
    (['--beams=2', '--penalty=power(1.0)', '--stopping=likely'], dict(num_beams=2)),
  ):
    printed = command(capsys, 'generate', f'--workdir={workdir}', '--prompt=Now', *flags)
    assert printed == f'{run.generate("Now", **settings)}\n'


def test_attention_has_labels_and_sums_to_one(run):
  maps = run.attention('Now', layers=[1])['decoder']
  assert maps.queries == maps.keys == ['<eos>', 'N', 'o', 'w'] and maps.layers.keys() == {1}
  assert maps.layers[1].keys() == {0, 1, 2, 3}
  for weights in maps.layers[1].values():
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(weights[np.triu_indices(4, 1)], 0)


def test_evaluation_is_that_of_the_command(run, workdir, capsys, tmp_path):
  printed = json.loads(command(capsys, 'evaluate', f'--workdir={workdir}', '--split=test'))
  values = run.evaluate('test')
  assert values == {name: printed[name] for name in values} and 'loss' in values
  (tmp_path / 'a.txt').write_text('Other words.\n' * 50)
  other = run.evaluate(source=f'text("{tmp_path}/a.txt", tail=0.5)')
  assert other['tokens'] == 13 * 25 + 1 and other['loss'] > values['loss']


def test_an_encoder_decoder_translates():
  pair = untrained(
    model=dict(architecture='encoder_decoder', layers=1, width=16, heads=2),
    objective='seq2seq',
    data=dict(source='numbers("en", "de", pairs=2000)', packing='padded', length=32),
  )
  target = pair.generate('two', max_new_tokens=5)
  ids = pair.generate(np.array([[*b'two', 256]]), max_new_tokens=5, eos_id=256)
  assert pair.tokenizer.decode(ids[0]) == target and not target.startswith('two')
  assert pair.attention('two', 'zwei').keys() == {'encoder', 'decoder', 'cross'}
  logits = pair.logits('two', decoder_input_ids=np.array([[256, *b'zwei']]))
  assert logits.shape == (1, 5, 257)


def test_an_encoder_reads_texts_and_generates_none():
  encoder = untrained(
    model=dict(architecture='encoder', layers=1, width=16, heads=2),
    objective='classification(3)',
    data=dict(source='labelled("a.tsv")', packing='each', length=32),
  )
  assert encoder.output == 'classes' and encoder.logits(['good', 'very bad']).shape == (2, 3)
  np.testing.assert_allclose(encoder.logits(['good', 'very bad'])[0], encoder.logits('good')[0], atol=1e-5)
  with pytest.raises(ValueError, match='an encoder generates no text'):
    encoder.generate('good')


@pytest.fixture(scope='module')
def published(tmp_path_factory):
  """A folder with a GPT-2 of random parameters, and its tokenizer."""
  folder = tmp_path_factory.mktemp('hub') / 'gpt2'
  folder.mkdir()
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer, tokenizer.decoder = (
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    decoders.ByteLevel(),
  )
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=['<|end|>'], initial_alphabet=alphabet)
  tokenizer.train_from_iterator(['Now is better than never.'] * 20, trainer)
  tokenizer.save(str(folder / 'tokenizer.json'))
  model = dict(layers=2, width=32, heads=4, position='learned', feed_forward='gelu_tanh', bias=True)
  built = tfm.build(dict(model=model, data=dict(length=24)), vocab=tokenizer.get_vocab_size())
  params = jax.tree.map(lambda x: 3 * x, built.init(jax.random.key(0)))
  ids = dict(eos=0, start=0)
  export.to_pretrained(built.config, params, str(folder), 'gpt2', tokenizer.get_vocab_size(), ids)
  return folder


def test_a_published_model_is_the_same_as_when_imported(published, tmp_path):
  assert cli.main(['import', f'--from={published}', f'--workdir={tmp_path}/run']) == 0
  model, imported = tfm.from_pretrained(published), tfm.load(tmp_path / 'run')
  assert type(model) is type(imported) is LoadedModel
  assert model.config == imported.config and model.family is imported.family is not None
  for name in ('output', 'ids', 'vocab', 'source_vocab', 'step', 'corpus'):
    assert getattr(model, name) == getattr(imported, name), name
  assert model.tokenizer.identity == imported.tokenizer.identity
  text = 'Now is better'
  assert model.tokenizer.decode(model.encode(text)[1:]) == text
  np.testing.assert_allclose(model.logits(text), imported.logits(text), atol=1e-5)
  assert model.generate(text) == imported.generate(text) != text
  maps = [one.attention(text)['decoder'] for one in (model, imported)]
  np.testing.assert_allclose(maps[0].layers[0][0], maps[1].layers[0][0], atol=1e-5)


def test_a_published_model_is_evaluated_on_data_that_are_named(published, tmp_path):
  model = tfm.from_pretrained(published)
  with pytest.raises(ValueError, match='has no data of its own; pass source='):
    model.evaluate()
  (tmp_path / 'a.txt').write_text('Now is better than never.\n' * 40)
  values = model.evaluate(source=f'text("{tmp_path}/a.txt", tail=0.5)')
  assert values['tokens'] == len(model.tokenizer.encode('Now is better than never.\n' * 20)) + 1


def test_without_a_tokenizer_a_model_reads_ids(published, tmp_path, caplog):
  for file in published.iterdir():
    if not file.name.startswith('tokenizer'):
      (tmp_path / file.name).symlink_to(file)
  model = tfm.from_pretrained(tmp_path)
  assert model.tokenizer is None and 'tokenizer' not in caplog.text
  assert model.logits(np.zeros((1, 3), int)).shape == (1, 3, model.vocab)
  for read in (model.logits, model.generate, model.attention):
    with pytest.raises(
      ValueError, match="model_type='gpt2' has no tokenizer, so it reads no texts; pass ids"
    ):
      read('Now')
  (tmp_path / 'tokenizer.json').write_text('{}')
  assert tfm.from_pretrained(tmp_path).tokenizer is None
  assert 'its tokenizer is not supported, so the model reads ids alone' in caplog.text
