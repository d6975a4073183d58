"""The rates that a device was measured to reach, instead of the published peaks."""

import dataclasses
import json
import pathlib

from tfm.analysis.roofline import Bound
from tfm.errors import require
from tfm.parallel.chip_specs import Chip, find_chip


@dataclasses.dataclass(frozen=True)
class Calibration:
  """What `tfm benchmark device` measured.

  Attributes:
    flops: of the fastest matrix product, per second; bandwidth: bytes/s of the fastest copy.
    machine: on what; kind: of the device, as JAX names it.
  """

  flops: float
  bandwidth: float
  machine: str
  kind: str

  def expect(self, bound: Bound, chip: Chip) -> Bound:
    """A step's bound with compute and memory at the measured rates; links, networks and hosts, which one
    device does not show, stay at their published peaks.

    Raises:
      ValueError: if another chip was measured.
    """
    require(
      find_chip(self.kind) == chip,
      f'--calibration was measured on {self.kind or self.machine!r}, and the plan is for {chip.name}; name '
      'measurements of that chip',
    )
    return dataclasses.replace(
      bound,
      compute=bound.compute * chip.flops / self.flops,
      memory=bound.memory * chip.bandwidth / self.bandwidth,
    )


def read_calibration(path: pathlib.Path) -> Calibration:
  """The fastest rates in a results.jsonl of `tfm benchmark device`.

  Raises:
    ValueError: if it is no such file, is of a smoke test, or has no matrix product or no copy.
  """
  require(path.is_file(), f'--calibration={path} is not a file; tfm benchmark device writes results.jsonl')
  try:
    entries = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
    found = [entry['found'] for entry in entries]
    tflops, gbps = (
      max((each[name] for each in found if name in each), default=0.0) for name in ('tflops', 'gbps')
    )
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f'--calibration={path} is not a results.jsonl of tfm benchmark device; name one'
    ) from error
  require(
    tflops > 0 and gbps > 0,
    f'--calibration={path} has no measured matrix product or no copy; run tfm benchmark device again',
  )
  require(
    not any(entry.get('smoke') for entry in entries),
    f'--calibration={path} is of a smoke test, whose numbers mean nothing; leave out --smoke there',
  )
  machine = entries[0]['machine']
  return Calibration(1e12 * tflops, 1e9 * gbps, machine, machine.partition(';')[0].partition(' ')[2])
