"""`tfm serve` as a process, and its refusals."""

import concurrent.futures
import signal
import subprocess
import sys
import time
import urllib.request

import openai
import pytest

from tfm.commands import cli
from tfm.runs.train import train


@pytest.fixture(scope='module')
def run_dir(tiny, tmp_path_factory):
  folder = tmp_path_factory.mktemp('serve') / 'run'
  train(tiny(**{'model.position': 'learned', 'training.steps': 1, 'training.evaluate_every': 1}), folder)
  return folder


def refuse(capsys, *flags):
  port = [] if any(flag.startswith('--port=') for flag in flags) else ['--port=0']
  assert cli.main(['serve', *port, *flags]) == 2
  return capsys.readouterr().err


@pytest.mark.parametrize(
  'flag, sentence',
  [
    ('--rows=0', '--rows=0 must be at least 1'),
    ('--rows=1000000000000', '--rows=1000000000000 must be at least 1 and at most 16,777,216'),
    ('--rows=10000000', 'use a smaller --rows or --length'),
    ('--queue=0', '--queue=0 must be at least 1'),
    ('--timeout=0', '--timeout=0.0 must be above 0'),
    ('--grace=-1', '--grace=-1 must be at least 0'),
    ('--length=1', '--length=1 must be at least 2'),
    ('--length=33', '--length=33 exceeds the 32 positions of Learned; use fewer'),
    ('--port=70000', '--port=70000 must lie in [0, 65535]'),
    ('--host=nowhere.invalid', '--host=nowhere.invalid is no address of this machine; 127'),
    ('--host=192.0.2.1', '--host=192.0.2.1 is no address of this machine; 127'),
    ('--chat_template=nowhere.jinja', 'nowhere.jinja'),
  ],
)
def test_invalid_flags_are_refused(run_dir, capsys, flag, sentence):
  assert sentence in refuse(capsys, f'--workdir={run_dir}', flag)


def test_a_template_that_is_none_is_refused(run_dir, capsys, tmp_path):
  file = tmp_path / 'chat.jinja'
  file.write_text('{% for', encoding='utf-8')
  assert f'{file} cannot be read as a chat template' in refuse(
    capsys, f'--workdir={run_dir}', f'--chat_template={file}'
  )


def test_a_folder_without_a_run_is_refused(capsys, tmp_path):
  assert 'holds no run; tfm train makes one' in refuse(capsys, f'--workdir={tmp_path}')


def requests_at(address):
  """The number of requests for texts that a server has read."""
  with urllib.request.urlopen(f'{address}metrics') as response:
    lines = response.read().decode().splitlines()
  numbers = {line.rpartition(' ')[0]: float(line.rpartition(' ')[2]) for line in lines if line[:1] != '#'}
  return sum(
    number
    for name, number in numbers.items()
    if name.startswith(('tfm_requests_total', 'tfm_texts_waiting', 'tfm_texts_active'))
  )


@pytest.mark.slow
def test_it_ends_gracefully_on_sigterm(run_dir, root):
  """What is answered is answered to its end, nothing else is accepted, and the status is 0."""
  command = [sys.executable, '-m', 'tfm', 'serve', f'--workdir={run_dir}', '--port=0', '--rows=1']
  process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, encoding='utf-8')
  try:
    address = process.stdout.readline().split()[0]
    client = openai.OpenAI(base_url=f'{address}v1', api_key='none', max_retries=0)
    fields = dict(model='run', prompt='', max_tokens=32, temperature=0)
    expected = client.completions.create(**fields).choices[0].text
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      answers = [pool.submit(client.completions.create, **fields) for _ in range(16)]
      while not any(answer.done() for answer in answers) or requests_at(address) < 17:
        time.sleep(0.001)
      process.send_signal(signal.SIGTERM)
      assert [answer.result().choices[0].text for answer in answers] == [expected] * 16
    assert process.wait(30) == 0
    with pytest.raises(openai.APIConnectionError):
      client.completions.create(**fields)
  finally:
    process.kill()
