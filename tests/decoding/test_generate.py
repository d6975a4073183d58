"""`tfm generate` with its command-line arguments on an untrained run."""

import json

import jax
import numpy as np
import pytest

from tests.decoding.tiny import LENGTH, tiny_model
from tfm.commands import cli
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data.tokenizers.bytes import Bytes
from tfm.decoding import streaming_text
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.runs import load as run


@pytest.fixture(scope='module')
def loaded():
  """A loaded run on all eight devices, with 257 tokens and 64 positions."""
  model, params = tiny_model(vocab=257, position='learned')
  experiment = Experiment(resolve_config(complete({})))
  rules = experiment.rules
  mesh = meshes.make(dict(data=-1))
  params = jax.device_put(params, sharding.replicated(mesh))
  return run.Run(experiment, model, params, Bytes(), mesh, rules, step=7, corpus='')


@pytest.fixture
def generate(loaded, monkeypatch, tmp_path, capsys):
  """`tfm generate` with flags → (status, stdout, stderr)."""
  calls = []

  def load(workdir, step, average, override):
    calls.append((workdir, step))
    return loaded

  monkeypatch.setattr(run, 'load', load)
  (tmp_path / 'checkpoints').mkdir()

  def call(*flags, workdir=tmp_path):
    status = cli.main(['generate', f'--workdir={workdir}', *flags])
    captured = capsys.readouterr()
    return status, captured.out, captured.err

  call.calls = calls
  return call


@pytest.mark.slow
def test_one_prompt_is_streamed(generate, monkeypatch, tmp_path):
  status, out, err = generate('--prompt=ab', '--max_tokens=12', '--temperature=0', '--step=best')
  assert status == 0 and generate.calls == [(str(tmp_path), 'best')]
  assert all(line.startswith('kernel: auto chose') for line in err.splitlines())
  assert len(err.splitlines()) <= 1  # though prompts and single tokens are other shapes
  assert out.startswith('ab') and out.endswith('\n') and len(out) > 3
  assert generate('--prompt=ab', '--max_tokens=12', '--temperature=0')[1] == out


def test_what_is_logged_stands_before_a_streamed_text(generate, monkeypatch):
  """Though the prompt, the first piece of the text, is there before the first tokens are computed."""
  stream = streaming_text.stream_text

  def log_and_stream(tokenizer, chunks):
    print('kernel: …')
    yield from stream(tokenizer, chunks)

  monkeypatch.setattr(streaming_text, 'stream_text', log_and_stream)
  assert generate('--prompt=ab', '--max_tokens=12')[1].startswith('kernel: …\nab')


def test_seed_and_temperature_change_the_text(generate):
  flags = ['--prompt=ab', '--max_tokens=12', '--temperature=1.5']
  outs = [generate(*flags, f'--seed={seed}')[1] for seed in (0, 0, 1)]
  assert outs[0] == outs[1] != outs[2]
  greedy = generate('--prompt=ab', '--max_tokens=12', '--temperature=0')[1]
  assert all(generate(*flags, only)[1] == greedy for only in ('--top_k=1', '--top_p=1e-6', '--min_p=1'))
  assert generate(*flags, '--temperature=0', '--repetition_penalty=9')[1] != greedy


def test_prompts_from_a_file(generate, tmp_path):
  """An empty line is an empty prompt; each result equals that of the prompt alone."""
  prompts = ['one', '', 'ÿ three']
  (tmp_path / 'prompts').write_bytes('one\r\n\nÿ three\n'.encode())
  flags = [f'--input={tmp_path}/prompts', '--max_tokens=12', '--num_samples=2', '--seed=4']
  status, out, _ = generate(*flags)
  assert status == 0
  heads = [f'=== prompt {i} of 3, sample {j} of 2 ===\n' for i in (1, 2, 3) for j in (1, 2)]
  at = [out.index(head) for head in heads]
  assert at == sorted(at) and at[0] == 0
  texts = [out[start + len(head) : stop] for start, head, stop in zip(at, heads, [*at[1:], None])]

  assert generate(*flags, f'--to={tmp_path}/out')[:2] == (0, '')
  rows = [json.loads(line) for line in open(tmp_path / 'out', encoding='utf-8')]
  assert [(row['prompt'], row['sample']) for row in rows] == [(p, j) for p in prompts for j in (0, 1)]
  assert [row['text'] + '\n\n' for row in rows] == texts
  assert len({row['text'] for row in rows}) == 6

  for prompt, row in zip(prompts, rows[::2]):
    assert generate(f'--prompt={prompt}', '--max_tokens=12', '--seed=4')[1] == row['text'] + '\n'


def test_batching_does_not_change_the_texts(generate, monkeypatch):
  flags = ['--prompt=a', '--prompt=b', '--num_samples=3', '--max_tokens=12']
  whole = generate(*flags)[1]
  monkeypatch.setattr('tfm.commands._generated_texts.ROWS', 4)
  assert generate(*flags)[1] == whole and whole.count('===\n') == 6


def test_max_tokens_is_limited_by_the_positions(generate):
  """64 positions, a start token and three bytes leave 61 tokens, the last of which is not read."""
  status, out, err = generate('--prompt=abc', f'--max_tokens={LENGTH - 2}')
  assert (status, out) == (2, '') and 'use at most max_tokens=61' in err


@pytest.mark.parametrize(
  'flags, message',
  [
    ([], 'use either --prompt=TEXT or --input=FILE'),
    (['--prompt=a', '--input=b'], 'use either --prompt=TEXT or --input=FILE'),
    (['--prompt=\udcff'], 'is not UTF-8 text'),
    (['--input=EMPTY'], 'EMPTY is empty'),
    (['--input=LATIN'], 'LATIN is not UTF-8 text'),
    (['--input=MISSING'], 'MISSING'),
    (['--prompt=a', '--max_tokens=12', '--to=MISSING/out'], 'MISSING'),
    (['--prompt=a', '--temperature=-1'], 'temperature=-1'),
    (['--prompt=a', '--temperature=nan'], 'temperature=nan'),
    (['--prompt=a', '--top_k=-1'], 'top_k=-1'),
    (['--prompt=a', '--top_p=0'], 'top_p=0'),
    (['--prompt=a', '--top_p=1.5'], 'top_p=1.5'),
    (['--prompt=a', '--min_p=-1'], 'min_p=-1'),
    (['--prompt=a', '--repetition_penalty=0'], 'repetition_penalty=0'),
    (
      ['--prompt=a', '--repetition_penalty=2', '--beams=2'],
      '--repetition_penalty (sampling) and --beams (beam search) exclude each other',
    ),
    (
      ['--prompt=a', '--top_k=2', '--stopping=first'],
      '--top_k (sampling) and --stopping (beam search) exclude each other',
    ),
    (['--prompt=a', '--max_tokens=0'], 'max_tokens=0'),
    (['--prompt=a', '--num_samples=0'], 'num_samples=0'),
    (['--prompt=a', '--seed=-1'], 'seed=-1'),
    (['--prompt=a', '--top_q=1'], "did you mean '--top_"),
  ],
)
def test_invalid_arguments_are_rejected(generate, tmp_path, monkeypatch, flags, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'EMPTY').touch()
  (tmp_path / 'LATIN').write_bytes(b'\xff\n')
  status, out, err = generate(*flags)
  assert (status, out) == (2, '') and message in err and err.count('\n') == 1


def test_a_missing_workdir_is_rejected(generate, tmp_path):
  status, _, err = generate('--prompt=a', workdir=tmp_path / 'missing')
  assert status == 2 and 'missing' in err and not generate.calls


def test_parameters_are_not_donated(generate, loaded):
  generate('--prompt=a', '--max_tokens=12')
  assert np.isfinite(jax.tree.leaves(loaded.params)[0]).all()
