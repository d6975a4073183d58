"""64 clients at once for a while: each request is answered with its own text, and memory stays flat."""

import concurrent.futures
import os
import pathlib
import random
import subprocess
import sys
import time

import openai
import pytest


CLIENTS, PROMPTS = 64, 12
SECONDS = 15
GROWTH = 1.03  # of the resident memory between the first third and the end


def resident_bytes(process):
  """The memory that a process has."""
  text = pathlib.Path(f'/proc/{process.pid}/statm').read_text('utf-8')
  return int(text.split()[1]) * os.sysconf('SC_PAGE_SIZE')


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path('/proc/self/statm').exists(), reason='memory is read from /proc')
def test_many_clients_for_a_while(run_dir, root):
  flags = [f'--workdir={run_dir}', '--port=0', '--rows=8', '--queue=48']
  command = [sys.executable, '-m', 'tfm', 'serve', *flags]
  one_device = os.environ | dict(XLA_FLAGS='')
  process = subprocess.Popen(command, cwd=root, env=one_device, stdout=subprocess.PIPE, encoding='utf-8')
  try:
    address = process.stdout.readline().split()[0]
    fields = [
      dict(prompt='Now is'[:i], seed=i, temperature=i / 4, max_tokens=4 + 2 * i) for i in range(PROMPTS)
    ]
    with openai.OpenAI(base_url=f'{address}v1', api_key='none', max_retries=0, timeout=60) as client:

      def ask(i, **options):
        return client.completions.create(model=run_dir.name, **fields[i], **options)

      expected = [ask(i).choices[0].text for i in range(PROMPTS)]
      end = time.monotonic() + SECONDS

      def keep_asking(number):
        draw, counts = random.Random(number), dict(whole=0, streamed=0, left=0, refused=0)
        while time.monotonic() < end:
          i, kind = draw.randrange(PROMPTS), draw.choice(['whole', 'streamed', 'left'])
          try:
            if kind == 'whole':
              assert ask(i).choices[0].text == expected[i]
            else:
              with ask(i, stream=True) as events:
                text = ''
                for event in events:
                  text += event.choices[0].text
                  if kind == 'left':
                    break
              assert text == expected[i] or kind == 'left' and expected[i].startswith(text)
          except openai.RateLimitError:
            kind = 'refused'
            time.sleep(0.02)
          counts[kind] += 1
        return counts

      with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(keep_asking, number) for number in range(CLIENTS)]
        time.sleep(SECONDS / 3)
        before = resident_bytes(process)
        results = [answer.result() for answer in answers]
      after = resident_bytes(process)
      total = {kind: sum(counts[kind] for counts in results) for kind in results[0]}
      print(total, f'{before / 2**20:.0f} MiB, then {after / 2**20:.0f} MiB')
      assert all(total[kind] > 0 for kind in ('whole', 'streamed', 'left'))
      assert after < GROWTH * before
      assert ask(1).choices[0].text == expected[1]
    process.terminate()
    assert process.wait(60) == 0
  finally:
    process.kill()
    process.communicate()
