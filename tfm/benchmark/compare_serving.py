"""Answers to many clients at once: `tfm serve` beside a plain server around `generate` of `transformers`.

Both serve the same GPT-2 of 6 layers, width 384, 6 heads, of bytes and after one step, in float32 on all
cores, and continue the same prompts of 32 bytes by the most likely tokens. The plain server answers one
request after another, which is what a few lines of FastAPI do; `tfm serve` continues --rows texts in one
step. Each measurement starts a server, asks every prompt once to warm up, and times as many requests again
from --clients threads, each of which waits for its answer. The two alternate; the ratio is one of medians.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from tfm.benchmark.process import describe_machine
from tfm.data.progress_bar import track


TRAIN = (
  *('train', '--config=gpt2', '--config.data.source=stdlib', '--config.data.tokenizer=bytes'),
  *('--config.data.length=256', '--config.model.position=learned(rows=256)', '--config.model.layers=6'),
  *('--config.model.width=384', '--config.model.heads=6', '--config.model.dtype=float32'),
  *('--config.training.steps=1', '--config.training.batch_size=2', '--config.training.evaluation_batches=1'),
)
PROMPT = 32  # bytes
TIMEOUT = 600  # seconds of one request


class Load(NamedTuple):
  """What one server did under load.

  Attributes:
    rate: new tokens a second, of all requests together.
    waits: the seconds of each request.
    texts: the answers, in the order of the prompts.
  """

  rate: float
  waits: list[float]
  texts: list[str]


def arguments(parser: argparse.ArgumentParser) -> None:
  for name, default, text in (
    ('clients', 16, 'threads that ask'),
    ('requests', 64, 'requests in all'),
    ('tokens', 64, 'new tokens of a request'),
    ('rows', 8, 'of tfm serve: texts that share a step'),
    ('rounds', 3, 'measurements of each'),
  ):
    parser.add_argument(
      f'--{name}', type=int, default=default, metavar='N', help=f'{text} (default: {default})'
    )


def main(args: argparse.Namespace) -> None:
  for name in ('clients', 'requests', 'tokens', 'rows', 'rounds'):
    if getattr(args, name) < 1:
      raise ValueError(f'--{name}={getattr(args, name)} must be at least 1')
  with_torch = all(importlib.util.find_spec(name) for name in ('torch', 'transformers'))
  with tempfile.TemporaryDirectory() as folder:
    run, published = f'{folder}/run', f'{folder}/published'
    call('tfm', *TRAIN, f'--workdir={run}')
    # A queue for all clients, and a length for prompt, end-of-text token and answer.
    flags = f'--queue={args.clients}', f'--rows={args.rows}', f'--length={PROMPT + 1 + args.tokens}'
    servers = {'tfm serve': ('tfm', 'serve', f'--workdir={run}', '--port=0', *flags)}
    if with_torch:
      call('tfm', 'export', f'--workdir={run}', '--family=gpt2', f'--to={published}')
      servers['generate'] = 'tfm.benchmark.serving_torch', published
    loads = {name: [] for name in servers}
    for name in track([*servers] * args.rounds, 'benchmark', len(servers) * args.rounds):
      with open_server(*servers[name]) as address:
        loads[name].append(measure(address, args.clients, args.requests, args.tokens))
  print_table(loads)
  if not with_torch:
    print('PyTorch and transformers are not installed; `make oracle` installs them.')


def call(module: str, *args: str) -> None:
  """Runs `python -m module *args`.

  Raises:
    RuntimeError: if it failed.
  """
  done = subprocess.run(
    [sys.executable, '-m', module, *args], capture_output=True, text=True, encoding='utf-8'
  )
  if done.returncode:
    raise RuntimeError(f'{module} {" ".join(args)} failed:\n{done.stderr}')


@contextlib.contextmanager
def open_server(module: str, *args: str) -> Iterator[str]:
  """Starts `python -m module *args`, which prints its address first, and ends it after the block."""
  command = [sys.executable, '-m', module, *args]
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding='utf-8'
  ) as server:
    try:
      line = server.stdout.readline()
      if not line:
        raise RuntimeError(f'{" ".join(command[1:])} ended before it served')
      yield line.split()[0]
    finally:
      server.terminate()


def measure(address: str, clients: int, requests: int, tokens: int) -> Load:
  """Asks all prompts twice, and measures the second time."""
  text = pathlib.Path(__file__).read_text(encoding='ascii', errors='ignore')
  prompts = [text[7 * i : 7 * i + PROMPT] for i in range(requests)]

  def ask(prompt):
    start = time.perf_counter()
    body = dict(model='run', prompt=prompt, max_tokens=tokens, temperature=0)
    request = urllib.request.Request(
      f'{address}v1/completions', json.dumps(body).encode(), {'Content-Type': 'application/json'}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
      reply = json.load(answer)
    return time.perf_counter() - start, reply['usage']['completion_tokens'], reply['choices'][0]['text']

  with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    list(pool.map(ask, prompts))
    start = time.perf_counter()
    waits, counts, texts = zip(*pool.map(ask, prompts))
    seconds = time.perf_counter() - start
  return Load(sum(counts) / seconds, list(waits), list(texts))


def print_table(loads: dict[str, Sequence[Load]]) -> None:
  """One row a server, and the ratio."""
  table = Table(title=describe_machine(), title_justify='left', box=box.SIMPLE)
  for column in ('', 'tokens/s', 'median s a request', 'longest'):
    table.add_column(column, justify='right')
  rates = {name: statistics.median(load.rate for load in measured) for name, measured in loads.items()}
  for name, measured in loads.items():
    waits = [wait for load in measured for wait in load.waits]
    table.add_row(name, f'{rates[name]:,.0f}', f'{statistics.median(waits):.2f}', f'{max(waits):.2f}')
  Console(width=None if sys.stdout.isatty() else 120).print(table)
  if len(rates) > 1:
    tfm, plain = rates.values()
    texts = [measured[0].texts for measured in loads.values()]
    same = sum(a == b for a, b in zip(*texts))
    print(f'speed ratio: {tfm / plain:.2f}; {same} of {len(texts[0])} texts are equal')
