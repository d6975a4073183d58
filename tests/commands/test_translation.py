"""Translation on the command line: train, evaluate, generate; the task is to reverse digits."""

import json
import random

import pytest

from tfm.commands import cli


pytestmark = pytest.mark.slow
DRAW = random.Random(0)
NUMBERS = [''.join(DRAW.choices('0123456789', k=DRAW.randrange(1, 6))) for _ in range(600)]


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp('reversed')
  (folder / 'a').write_text(''.join(f'{n}\n' for n in NUMBERS))
  (folder / 'b').write_text(''.join(f'{n[::-1]}\n' for n in NUMBERS))
  config = folder / 'config.py'
  config.write_text(f"""
def get_config(arg):
  return dict(
    objective='seq2seq',
    data=dict(source="parallel('{folder}/a', '{folder}/b')", length=8, packing=arg or 'first_fit'),
    model=dict(architecture='encoder_decoder', layers=1, width=32, heads=2, encoder=dict(layers=1)),
    optimizer=dict(learning_rate=1e-2, warmup=5),
    training=dict(steps=30, batch_size=32, evaluate_every=15, keep_checkpoints=2))
""")
  return folder


@pytest.fixture(scope='module')
def workdir(files):
  path = files / 'run'
  assert cli.main(['train', f'--config={files}/config.py:buckets', f'--workdir={path}']) == 0
  return path


def tfm(capsys, *flags):
  status = cli.main([*flags])
  captured = capsys.readouterr()
  return status, captured.out, captured.err


def test_evaluate_writes_hypotheses_and_metrics(workdir, capsys):
  status, out, _ = tfm(
    capsys,
    'evaluate',
    f'--workdir={workdir}',
    '--split=test',
    '--metric=exact',
    '--metric=bleu',
    '--metric=chrf',
    '--metric=bleu(lowercase=True)',
  )
  assert status == 0
  values = json.loads(out)
  assert {'loss', 'exact', 'bleu', 'chrf', 'bleu(lowercase=True)'} <= set(values)
  assert 'tok:13a' in values['bleu_signature'] and 'case:lc' in values['bleu(lowercase=True)_signature']
  rows = [json.loads(line) for line in open(values['hypotheses'], encoding='utf-8')]
  assert rows and all(row['reference'] == row['source'][::-1] for row in rows)
  correct = sum(row['hypothesis'] == row['reference'] for row in rows)
  assert values['exact'] == pytest.approx(100 * correct / len(rows))


def test_two_systems_are_compared(workdir, capsys, tmp_path):
  """With one that has reversed all digits; other references and what is no file of targets are refused."""
  flags = 'evaluate', f'--workdir={workdir}', '--split=test', '--metric=chrf'
  values = json.loads(tfm(capsys, *flags)[1])
  rows = [json.loads(line) for line in open(values['hypotheses'], encoding='utf-8')]
  right, other = tmp_path / 'right.jsonl', tmp_path / 'other.jsonl'
  right.write_text(''.join(json.dumps(row | dict(hypothesis=row['reference'])) + '\n' for row in rows))
  found = json.loads(tfm(capsys, *flags, f'--against={right}')[1])
  name = 'chrf'
  assert found[f'{name}_against'] == pytest.approx(100) and found[f'{name}_p'] < 0.01
  low, high = found[f'{name}_interval']
  assert low <= found[name] <= high < found[f'{name}_against_interval'][0]
  other.write_text(''.join(json.dumps(row | dict(reference='1')) + '\n' for row in rows))
  assert 'other references' in tfm(capsys, *flags, f'--against={other}')[2]
  assert 'no file of targets' in tfm(capsys, *flags, f'--against={tmp_path}/none')[2]
  assert 'has no test of two systems' in tfm(capsys, *flags, '--metric=exact', f'--against={right}')[2]


def test_generate_from_a_file(workdir, files, capsys):
  (files / 'some').write_text('12\n345\n\n6789\n')
  flags = ['generate', f'--workdir={workdir}', f'--input={files}/some']
  assert tfm(capsys, *flags, f'--to={files}/out.txt', '--beams=3')[:2] == (0, '')
  lines = (files / 'out.txt').read_text().split('\n')
  assert len(lines) == 5 and lines[-1] == ''
  assert tfm(capsys, *flags, f'--to={files}/out.jsonl', '--beams=3', '--num_samples=3')[0] == 0
  rows = [json.loads(line) for line in open(files / 'out.jsonl', encoding='utf-8')]
  assert [(row['prompt'], row['sample']) for row in rows] == [
    (p, j) for p in ('12', '345', '', '6789') for j in range(3)
  ]
  assert [row['text'] for row in rows[::3]] == lines[:-1]
  assert all(a['score'] >= b['score'] for a, b in zip(rows, rows[1:]) if b['sample'])


def test_generate_with_sampling_and_forced_prefix(workdir, capsys):
  status, out, _ = tfm(capsys, 'generate', f'--workdir={workdir}', '--prompt=123', '--forced=32')
  assert status == 0 and out.startswith('32')
  status, out, _ = tfm(
    capsys, 'generate', f'--workdir={workdir}', '--prompt=123', '--temperature=1', '--num_samples=4'
  )
  assert status == 0 and out.count('=== prompt 1 of 1') == 4


def test_checkpoints_are_averaged(workdir, capsys):
  losses = [
    json.loads(tfm(capsys, 'evaluate', f'--workdir={workdir}', '--metric=exact', *more)[1])['loss']
    for more in (['--step=15'], ['--step=30'], ['--average=2'])
  ]
  assert len(set(losses)) == 3
  status, _, err = tfm(capsys, 'evaluate', f'--workdir={workdir}', '--average=3')
  assert status == 2 and '--average=3 requires 3 checkpoints up to step 30; existing steps: [15, 30]' in err


@pytest.mark.parametrize(
  'flags, sentence',
  [
    (['--prompt=1', '--beams=2', '--temperature=1'], '--temperature (sampling) and --beams (beam search)'),
    (['--prompt=1', '--beams=0'], '--beams=0 must be at least 1'),
    (['--prompt=1', '--beams=1025'], '--beams=1025 must be at most 1,024'),
    (['--prompt=1', '--num_samples=1000000'], '--num_samples=1000000 must be at least 1 and at most 65,536'),
    (['--prompt=1', '--beams=2', '--num_samples=3'], '--num_samples=3 exceeds --beams=2'),
    (['--prompt=1', '--penalty=gnu'], "'gnu'"),
  ],
)
def test_invalid_arguments_are_rejected(workdir, capsys, flags, sentence):
  status, out, err = tfm(capsys, 'generate', f'--workdir={workdir}', *flags)
  assert (status, out) == (2, '') and sentence in err
