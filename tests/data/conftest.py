"""Small corpora in a cache that lasts for the session."""

import math
import pathlib
import random

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.data import distinct_tokens
from tfm.data.row_share import process_shares
from tfm.data.sources.protocol import build_source


_draw = random.Random(0)
WORDS = 'the cat sat on a mat, and née Ünal said: "42 §§" to  the\tdog 猫 🐈'.split(' ') + [
  ''.join(_draw.choices(('ba', 'cro', 'del', 'fin', 'gus', 'ham', 'is', 'jo', 'kew', 'lid'), k=k))
  for k in (1, 2, 3, 4)
  for _ in range(30)
]


@pytest.fixture(scope='session')
def cache_dir(tmp_path_factory) -> pathlib.Path:
  return tmp_path_factory.mktemp('cache')


@pytest.fixture(scope='session')
def make_text():
  """A function (seed, lines) -> text of random words with blank lines."""

  def make(seed: int, lines: int) -> str:
    draw = random.Random(seed)
    return ''.join(' '.join(draw.choices(WORDS, k=draw.randrange(12))) + '\n' for _ in range(lines))

  return make


@pytest.fixture(scope='session')
def make_source():
  """A function (spec) -> source."""
  return build_source


@pytest.fixture(scope='session')
def make_shares():
  """A function (batch size, number of processes, layout) -> the share of each process.

  Layouts: blocks, as on CPUs; tiles, as on a torus: processes take turns.
  """

  def make(batch_size: int, count: int, layout: str):
    devices = jax.devices()[: math.gcd(batch_size, jax.device_count())]
    sharding = NamedSharding(
      jax.make_mesh((len(devices),), ('data',), devices=devices), PartitionSpec('data')
    )
    process_of = {
      'blocks': lambda device: device.id * count // len(devices),
      'tiles': lambda device: device.id % count,
    }[layout]
    shares = process_shares(sharding, batch_size, process_of)
    return [shares[process] for process in range(count)]

  return make


@pytest.fixture(scope='session')
def make_tokens():
  """A function (lengths) -> tokens that are all different, so that each can be identified."""
  return distinct_tokens.make_tokens
