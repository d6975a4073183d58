"""What the makers say that a chip can do: products, memory, networks; for MFU and for bounds."""

import dataclasses
import os
import pathlib
import platform
import re

import jax


GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published peaks of one chip; what it has in practice is less.

  Attributes:
    name: in words.
    flops: dense bfloat16, FLOP/s.
    memory, bandwidth: of its HBM, in bytes and bytes/s.
    links: bytes/s that it sends to its neighbours at once, over all links, one way.
    network: bytes/s that it sends beyond them: to another slice of TPUs, another box of GPUs.
    dims: of the torus that its neighbours make; 0: a switch.
    devices: of JAX, that share one chip.
    capability: of a GPU, the compute capability that it would tell.
  """

  name: str
  flops: float
  memory: int
  bandwidth: float
  links: float
  network: float
  dims: int
  devices: int = 1
  capability: str | None = None

  @property
  def device(self) -> 'Chip':
    """One device's share."""
    n = self.devices
    return dataclasses.replace(
      self,
      flops=self.flops / n,
      memory=self.memory // n,
      bandwidth=self.bandwidth / n,
      links=self.links / n,
      network=self.network / n,
      devices=1,
    )


# How a device_kind begins → its chip.
#
# TPU v5p, v6e, 7x: docs.cloud.google.com/tpu/docs/tpu7x, "System architecture", which compares the three; the bidirectional
# ICI bandwidth there counts both ways (1200, 800, 1200 GB/s), DCN 50, 100, 100 Gb/s a chip. TPU v5e: …/tpu/docs/v5e (ICI
# 400 GB/s both ways; DCN 6.4 Tb/s a pod of 256). TPU v4: …/tpu/docs/v4; ICI of six links of 50 GB/s each way, Jouppi et al.
# 2023, "TPU v4", Table 4. Assumed, for it is not published: DCN of a v4 chip as of a v5e. A v4 or v5p chip has two cores,
# which JAX takes for one device; those of a 7x are two devices.
#
# GPUs: NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM and DGX B200, without sparsity; NVLink, which is given both
# ways, halved. Assumed: a network adapter of 200 Gb/s (A100) or 400 Gb/s for each GPU, as DGX boxes have.
CHIPS = {
  'TPU v4': Chip('TPU v4', 275e12, 32 * GIB, 1200e9, 300e9, 3.125e9, dims=3),
  'TPU v5 lite': Chip('TPU v5e', 197e12, 16 * GIB, 819e9, 200e9, 3.125e9, dims=2),
  'TPU v5e': Chip('TPU v5e', 197e12, 16 * GIB, 819e9, 200e9, 3.125e9, dims=2),
  'TPU v5': Chip('TPU v5p', 459e12, 95 * GIB, 2765e9, 600e9, 6.25e9, dims=3),
  'TPU v6 lite': Chip('TPU v6e', 918e12, 32 * GIB, 1638e9, 400e9, 12.5e9, dims=2),
  'TPU v6e': Chip('TPU v6e', 918e12, 32 * GIB, 1638e9, 400e9, 12.5e9, dims=2),
  'TPU7x': Chip('TPU7x', 2307e12, 192 * GIB, 7380e9, 600e9, 12.5e9, dims=3, devices=2),
  'NVIDIA A100': Chip('A100 80GB SXM', 312e12, 80 * 10**9, 2039e9, 300e9, 25e9, dims=0, capability='8.0'),
  'NVIDIA H100': Chip('H100 SXM', 989e12, 80 * 10**9, 3350e9, 450e9, 50e9, dims=0, capability='9.0'),
  'NVIDIA H200': Chip('H200 SXM', 989e12, 141 * 10**9, 4800e9, 450e9, 50e9, dims=0, capability='9.0'),
  'NVIDIA B200': Chip('B200', 2250e12, 180 * 10**9, 8000e9, 900e9, 50e9, dims=0, capability='10.0'),
}


def find_chip(device_kind: str) -> Chip | None:
  """The chip of a device by its `device_kind`; None where it is not in the table."""
  names = sorted((name for name in CHIPS if device_kind.startswith(name)), key=len)
  return CHIPS[names[-1]] if names else None


def cpu_core_count() -> int:
  """Cores of the CPU that this process may use, of which taskset or Slurm may leave it some."""
  return (
    len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  )  # macOS binds no process


def cpu_model() -> str:
  """The model of the CPU, where the platform tells it; else nothing."""
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  names = (
    re.findall(r'^model name\s*:\s*(.*)$', cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else []
  )
  return (names or [platform.processor()])[0].strip()


def peak_flops() -> float | None:
  """Peak FLOP/s of all devices together; None where the chip is not in the table."""
  chip = find_chip(jax.devices()[0].device_kind)
  return chip and chip.device.flops * jax.device_count()
