"""The model learns: held-out bits per byte against n-gram counts; and the demo decides."""

import os
import platform
import re
import subprocess
import sys

import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.data import cache, pipeline
from tfm.runs import load as runs


def ngram_bits_per_byte(train, held_out, order):
  """Bits per byte of an add-one n-gram model of bytes, trained on `train`."""
  index = np.zeros(len(train) - order + 1, np.int64)
  for i in range(order):
    index = index * 256 + train[i : len(train) - order + 1 + i]
  counts = np.bincount(index, minlength=256**order).reshape(-1, 256).astype(float) + 1
  bits = -np.log2(counts / counts.sum(-1, keepdims=True))
  context = np.zeros(len(held_out) - order + 1, np.int64)
  for i in range(order - 1):
    context = context * 256 + held_out[i : len(held_out) - order + 1 + i]
  return bits[context, held_out[order - 1 :]].mean()


@pytest.mark.slow
def test_half_of_the_demo_beats_unigrams_and_bigrams(root, tmp_path):
  config = resolve_config(load_config(str(root / 'configs' / 'lm.py') + ':demo'))
  text = pipeline.open_text(Experiment(config).source, Experiment(config).tokenizer, cache.directory())
  splits = {
    s: np.frombuffer(''.join(text.corpus.splits[s]['text']).encode(), np.uint8)
    for s in ('train', 'validation')
  }
  unigram, bigram = (ngram_bits_per_byte(splits['train'], splits['validation'], n) for n in (1, 2))
  # A process of its own: with the flags of tests/conftest.py, which save compiling, steps take four times as
  # long.
  environment = os.environ | dict(XLA_FLAGS='')
  command = [sys.executable, '-m', 'tfm', 'train', '--config=configs/lm.py:demo', f'--workdir={tmp_path}']
  command += ['--config.training.steps=500']
  subprocess.run(command, cwd=root, env=environment, check=True, timeout=1500)
  bits_per_byte = runs.evaluate(runs.load(tmp_path), 'validation').metrics['bits_per_byte']
  print(f'validation bits per byte: unigram {unigram:.3f}, bigram {bigram:.3f}, model {bits_per_byte:.3f}')
  assert bigram < unigram
  assert bits_per_byte < 0.8 * bigram


@pytest.mark.slow
def test_the_demo_ends_as_the_readme_says(root, tmp_path):
  """The same findings in the same order, on any Python's library; on the README's the numbers, too, but for
  their last digits."""
  readme = (root / 'README.md').read_text(encoding='utf-8')
  quoted = ' '.join(re.findall(r'^> (.*)$', readme, re.MULTILINE))
  command = [sys.executable, '-m', 'tfm', 'ablate', 'experiments/position.py:demo', f'--workdir={tmp_path}']
  subprocess.run(command, cwd=root, env=os.environ | dict(XLA_FLAGS=''), check=True, timeout=1500)
  report = (tmp_path / 'report.md').read_text(encoding='utf-8')
  number = re.compile(r'\d+\.\d+')
  print(quoted, report[:600], sep='\n')
  assert number.sub('#', quoted) in number.sub('#', report)
  if f'Python {platform.python_version()}' not in readme:  # its library is another text
    return
  found = number.findall(next(line for line in report.splitlines() if line.startswith('rope has')))
  np.testing.assert_allclose(*[[float(n) for n in ns] for ns in (found, number.findall(quoted))], atol=0.02)
