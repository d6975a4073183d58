"""`tfm export` writes a run as a published checkpoint; `tfm import` converts one into a run."""

import json

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tfm
from tfm.commands import cli
from tfm.runs import load, train


GPT2 = {
  'model.position': 'learned',
  'model.norm': 'layernorm(1e-5)',
  'model.bias': True,
  'model.feed_forward': 'gelu_tanh',
}


def write_tokenizer(folder):
  """Writes a byte-level BPE tokenizer without merges: 257 tokens with the end token, like tfm's `bytes`."""
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer, tokenizer.decoder = (
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    decoders.ByteLevel(),
  )
  tokenizer.train_from_iterator(
    [''],
    trainers.BpeTrainer(
      vocab_size=257, special_tokens=['</s>'], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    ),
  )
  tokenizer.save(str(folder / 'tokenizer.json'))


@pytest.fixture(scope='module')
def folders(tiny, tmp_path_factory):
  """A run, its export as a published checkpoint, and the import of that as a run."""
  root = tmp_path_factory.mktemp('runs')
  train.train(tiny(**GPT2), str(root / 'own'))
  assert cli.main(['export', f'--workdir={root / "own"}', f'--to={root / "published"}', '--family=gpt2']) == 0
  write_tokenizer(root / 'published')
  fields = json.loads((root / 'published' / 'config.json').read_text())
  (root / 'published' / 'config.json').write_text(json.dumps(fields | dict(eos_token_id=0)))
  source = tiny().data.source
  assert (
    cli.main(
      [
        'import',
        f'--from={root / "published"}',
        f'--workdir={root / "run"}',
        f'--config.data.source={source}',
      ]
    )
    == 0
  )
  return root


def test_export_and_import_keep_logits_and_parameters(folders):
  own, model = load.load(str(folders / 'own')), tfm.from_pretrained(str(folders / 'published'))
  ids = np.random.default_rng(0).integers(0, 257, (2, 20))
  from tfm.mixers.protocol import Context

  expected = jax.jit(lambda params: own.model.apply({'params': params}, ids, Context.contiguous(ids))[0])(
    own.params
  )
  np.testing.assert_allclose(model.logits(ids), expected, atol=1e-5)
  imported = load.load(str(folders / 'run'))
  assert jax.tree.all(
    jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), imported.params, model.params)
  )
  assert imported.step == 0 and imported.config.data.tokenizer == f'published({str(folders / "published")!r})'


@pytest.mark.slow
def test_commands_read_an_imported_run(folders, capsys):
  assert cli.main(['evaluate', f'--workdir={folders / "run"}']) == 0
  assert 4 < json.loads(capsys.readouterr().out)['bits_per_byte'] < 12
  for _ in range(2):
    assert (
      cli.main(
        ['generate', f'--workdir={folders / "run"}', '--prompt=Now is', '--max_tokens=5', '--temperature=0']
      )
      == 0
    )
  first, second = capsys.readouterr().out.split('Now is')[1:]
  assert first == second
  assert cli.main(['export', f'--workdir={folders / "run"}', f'--to={folders / "again"}']) == 0
  names = sorted(path.name for path in (folders / 'again').iterdir())
  assert names == ['config.json', 'model.safetensors', 'tokenizer.json']
  one, other = ((folders / name / 'model.safetensors').read_bytes() for name in ('published', 'again'))
  assert one == other


@pytest.mark.slow
def test_rotations_of_an_imported_run_follow_the_length_of_each_text(tiny, tmp_path, capsys):
  """Prompts within the length of the first training and beyond it, as the published model continues each."""
  run, published, imported = (tmp_path / name for name in ('run', 'published', 'imported'))
  llama = {'model.norm': 'rmsnorm', 'model.feed_forward': 'swiglu', 'model.initializer': 'normal(0.3)'}
  train.train(tiny(**llama), str(run))
  assert cli.main(['export', f'--workdir={run}', f'--to={published}', '--family=llama']) == 0
  write_tokenizer(published)
  fields = json.loads((published / 'config.json').read_text())
  rotation = dict(rope_type='dynamic', factor=8.0)
  fields |= dict(eos_token_id=0, max_position_embeddings=16, rope_scaling=rotation)
  (published / 'config.json').write_text(json.dumps(fields))
  assert cli.main(['import', f'--from={published}', f'--workdir={imported}']) == 0
  prompts = ['Now', 'Now is better than never.', 'Although never is often better than right now.']
  file = tmp_path / 'out.jsonl'
  for flags, settings in ((('--temperature=0',), {}), (('--beams=2',), dict(num_beams=2))):
    words = *(f'--prompt={prompt}' for prompt in prompts), '--max_tokens=24', f'--to={file}', *flags
    assert cli.main(['generate', f'--workdir={imported}', *words]) == 0
    texts = [json.loads(line)['text'] for line in file.read_text().splitlines()]
    model, tokenizer = tfm.from_pretrained(str(published)), load.load(imported).tokenizer
    for prompt, text in zip(prompts, texts):
      ids = np.array([[tokenizer.bos_id, *tokenizer.encode(prompt)]])
      [new] = model.generate(ids, max_new_tokens=24, eos_id=tokenizer.eos_id, **settings)
      ended = new[: list(new).index(tokenizer.eos_id)] if tokenizer.eos_id in new else new
      assert text == prompt + tokenizer.decode(ended)


@pytest.mark.slow
def test_training_starts_from_an_imported_run(folders, tiny, capsys):
  config = f'--config={folders / "run" / "config.json"}'
  words = [
    config,
    f'--workdir={folders / "tuned"}',
    '--config.training.steps=2',
    '--config.training.batch_size=8',
    '--config.training.evaluate_every=1',
    '--config.training.evaluation_batches=2',
    '--config.optimizer.warmup=0',
    '--config.optimizer.learning_rate=1e-9',
    '--config.optimizer.schedule=constant',
  ]
  assert cli.main(['train', *words, f'--config.init_from={folders / "run"}']) == 0
  before, after = (load.load(str(folders / name)) for name in ('run', 'tuned'))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), before.params, after.params)
  assert after.tokenizer.identity == before.tokenizer.identity
  # The second call resumes from its own checkpoint.
  assert cli.main(['train', *words, f'--config.init_from={folders / "run"}']) == 0


@pytest.mark.parametrize(
  'words, message',
  [
    (
      ['train', '--config=RUN/config.json', '--workdir=RUN'],
      'holds weights of tfm import, which training would overwrite',
    ),
    (
      ['train', '--config=RUN/config.json', '--workdir=NEW', '--config.init_from=NEW'],
      'holds no run; tfm train or tfm import makes one',
    ),
    (
      [
        'train',
        '--config=RUN/config.json',
        '--workdir=NEW',
        '--config.init_from=RUN',
        '--config.model.head_width=4',
      ],
      'is of another model: model.head_width: 8 → 4',
    ),
    (
      [
        'train',
        '--config=RUN/config.json',
        '--workdir=NEW',
        '--config.init_from=RUN',
        '--config.data.tokenizer=bytes',
      ],
      'is of another model: data.tokenizer: ',
    ),
    (['import', '--from=OWN', '--workdir=NEW'], 'has no config.json|model_type=None is not supported'),
    (['import', '--from=PUBLISHED', '--workdir=RUN'], 'holds a run; use a new directory'),
    (
      ['import', '--from=PUBLISHED', '--workdir=NEW', '--config.model.heads=2'],
      'the model is fixed by the published checkpoint',
    ),
    (['export', '--workdir=OWN', '--to=NEW'], 'was not imported; set --family'),
    (
      ['export', '--workdir=OWN', '--to=NEW', '--family=llama'],
      "config.model.feed_forward='gelu_tanh' has no config.json value",
    ),
    (['export', '--workdir=OWN', '--to=NEW', '--family=gpt3'], "--family='gpt3' is unknown"),
    (['train', '--config=NEW/config.json', '--workdir=NEW'], 'config.json is no file'),
  ],
)
def test_invalid_arguments_are_rejected(folders, tmp_path, words, message, capsys):
  import re

  folders_by_name = dict(
    RUN=folders / 'run', NEW=tmp_path / 'new', OWN=folders / 'own', PUBLISHED=folders / 'published'
  )
  for name, path in folders_by_name.items():
    words = [word.replace(name, str(path)) for word in words]
  assert cli.main(words) == 2
  assert re.search(message, capsys.readouterr().err)
