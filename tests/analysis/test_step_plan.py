"""What a plan concludes of a compiled step: its memory, and what of it is counted."""

# ruff: noqa: E501  (the error text of a compiler)

import collections
import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from tfm.analysis import plan, plan_report
from tfm.analysis.collectives import Collective
from tfm.analysis.roofline import Bound
from tfm.parallel import chip_specs
from tfm.parallel import mesh as meshes


def test_a_chip_of_two_devices_trains_what_both_do(sums):
  bound = Bound(compute=2.0, memory=1.0, links=1.0, network=0.0, host=0.0, axes={})
  one = dataclasses.replace(sums, device='TPU7x', mesh=dict(data=4), tokens=1200, bound=bound)
  assert one.rates == (300, 600) and one.rates_per_chip == (150, 300)
  assert dataclasses.replace(one, device='TPU v6 lite').rates_per_chip == (75, 150)


@pytest.fixture
def sums():
  """A plan of a decoding step in whose text no product is left."""
  text = jax.jit(lambda x: x.sum()).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile().as_text()
  step = types.SimpleNamespace(name='decoding', arguments={}, tokens=8, flops=8000.0, pairs=0.0)
  return plan.analyze_step(
    step, meshes.make({'data': -1}), plan.Compiled(text, collections.defaultdict(int), '', 1.0)
  )


def test_decoding_counts_no_less_than_the_model(sums):
  assert sums.products == 1000 and not sums.is_complete
  assert (
    'FLOPs',
    '1.000e+03',
    'per device and step, at least: the model’s FLOPs, not all of which are compiled to products',
  ) in plan_report.summary(sums)


def test_what_is_counted_once_is_marked(sums):
  one = dataclasses.replace(
    sums,
    collectives=(
      Collective('all-gather', ('sequence',), 2, 3, 2**20, least=True),
      Collective('all-reduce', ('data',), 4, 1, 2**20),
    ),
  )
  title, _, rows = plan_report.tables([one])[-1]
  assert title == 'decoding: sent by a device in a step (≥: in a loop of unknown trip count, counted once)'
  assert [row[3:5] for row in rows] == [('≥ 3', '≥ 1.00 MiB'), ('1', '1.00 MiB')]
  assert [each['least'] for each in plan_report.data(one)['collectives']] == [True, False]
  assert '≥' not in plan_report.tables([dataclasses.replace(one, collectives=one.collectives[1:])])[-1][0]


REFUSED = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.17G of 15.75G hbm. Exceeded hbm capacity by 4.42G.

Total hbm usage >= 20.42G:
    reserved        258.00M
    program          18.17G
    arguments         2.00G

Output size 2.00G; shares 2.00G with arguments.
"""


STEP = types.SimpleNamespace(arguments=dict(parameters=2**30, optimizer=2**31))


def test_what_the_compiler_refuses():
  memory = plan.memory_from_error(STEP, REFUSED, 16 * 2**30)
  assert (
    memory.fits is False and memory.capacity == round(15.75 * 2**30) and memory.needed == round(20.17 * 2**30)
  )
  assert memory.kinds == dict(reserved=258 * 2**20, program=round(18.17 * 2**30), arguments=2 * 2**30)
  assert plan.summary(REFUSED).startswith('XLA:TPU compile permanent error. Ran out of memory')


@pytest.mark.parametrize(
  'platform, host, temporaries, source',
  [
    ('tpu', (0, 0), 700, 'compiler'),
    ('tpu', (70, 0), 630, 'compiler'),
    ('tpu', (70, 5), 1000, 'compiler'),
    ('cpu', (0, 0), 1000, 'sum'),
  ],
)
def test_what_is_alive_at_once(platform, host, temporaries, source):
  step = types.SimpleNamespace(arguments=dict(parameters=100, optimizer=150))
  sizes = dict(argument=260, output=255, alias=250, temp=1000, generated_code=30, peak=965)
  sizes |= dict(host_arguments=host[0], host_temporaries=host[1])
  memory = plan.memory_from_compiler(step, sizes, 1100, platform)
  assert memory.kinds == {
    'parameters': 100,
    'optimizer': 150,
    'other arguments and padding': 10,
    'results beside the arguments': 5,
    'temporaries': temporaries,
    'code': 30,
  }
  assert (
    memory.needed == 295 + temporaries
    and memory.host == sum(host)
    and memory.source == source
    and memory.fits == (source == 'compiler' or memory.needed <= 1100)
  )


def test_a_step_that_fits_may_have_parts_that_are_not_there_at_once(sums):
  one = dataclasses.replace(sums, memory=plan.Memory({}, 33 * 2**30, 32 * 2**30, 'compiler', host=2**30))
  assert plan_report.verdict(one) == 'fits in 32.00 GiB; its parts, not all of them at once, are 33.00 GiB'


def test_what_it_refuses_of_the_temporaries_alone():
  memory = plan.memory_from_error(
    STEP,
    'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries '
    '(17.40G) exceeds available HBM (15.75G).',
    16 * 2**30,
  )
  assert memory.fits is False and memory.capacity == round(15.75 * 2**30)
  assert memory.kinds == STEP.arguments | dict(
    temporaries=round(17.4 * 2**30)
  ) and memory.needed == 3 * 2**30 + round(17.4 * 2**30)


def refuses():
  raise jax.errors.JaxRuntimeError('UNIMPLEMENTED: of a device that is not here')


@pytest.mark.parametrize(
  'stats, chip, capacity',
  [
    (lambda: dict(bytes_limit=100), 'NVIDIA H200', 100),
    (lambda: None, 'NVIDIA H200', 141 * 10**9),
    (lambda: None, 'cpu', None),
    (refuses, 'TPU v5 lite', 16 * 2**30),
  ],
)
def test_an_attached_device_reports_its_memory(stats, chip, capacity):
  assert (
    plan.memory_capacity(types.SimpleNamespace(memory_stats=stats), chip_specs.find_chip(chip)) == capacity
  )


def test_what_it_has_no_room_for():
  memory = plan.memory_from_error(
    STEP, 'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.00GiB.', 2**33
  )
  assert memory.fits is False and memory.capacity == 2**33 and memory.needed == 15 * 2**30
