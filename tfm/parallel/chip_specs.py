"""Published peaks of accelerator chips: FLOP/s, memory, networks; for MFU and step-time bounds."""

import dataclasses
import os
import pathlib
import platform
import re

import jax


GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Published peaks of one chip; real programs reach less.

  Attributes:
    name: product name.
    flops: dense bfloat16 FLOP/s.
    memory, bandwidth: HBM capacity in bytes and bandwidth in bytes/s.
    links: bytes/s that it sends to its neighbours over all links at once, one way.
    network: bytes/s that it sends to another TPU slice or another GPU host.
    host: bytes/s between it and the memory of its host, one way.
    dims: dimensions of the torus of links; 0 for a switch.
    devices: JAX devices per chip.
    capability: the compute capability of a GPU.
  """

  name: str
  flops: float
  memory: int
  bandwidth: float
  links: float
  network: float
  host: float
  dims: int
  devices: int = 1
  capability: str | None = None

  @property
  def device(self) -> 'Chip':
    """The share of one JAX device."""
    n = self.devices
    return dataclasses.replace(
      self,
      flops=self.flops / n,
      memory=self.memory // n,
      bandwidth=self.bandwidth / n,
      links=self.links / n,
      network=self.network / n,
      host=self.host / n,
      devices=1,
    )


# Prefix of a device_kind → its chip.
#
# TPU v5p, v6e, 7x: docs.cloud.google.com/tpu/docs/tpu7x, "System architecture", which compares the three; the
# bidirectional ICI bandwidth there counts both ways (1200, 800, 1200 GB/s), DCN 50, 100, 100 Gb/s a chip. TPU
# v5e: …/tpu/docs/v5e (ICI 400 GB/s both ways; DCN 6.4 Tb/s a pod of 256). TPU v4: …/tpu/docs/v4; ICI of six
# links of 50 GB/s each way, Jouppi et al. 2023, "TPU v4", Table 4. Assumed, because unpublished: DCN of a v4
# chip as of a v5e. The two cores of a v4 or v5p chip are one JAX device; those of a 7x are two.
#
# GPUs: NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM and DGX B200, without sparsity; the NVLink
# bandwidth there counts both ways and is halved. Assumed: a network adapter of 200 Gb/s (A100) or 400 Gb/s
# for each GPU, as DGX boxes have.
#
# Hosts of TPUs: Austin et al. 2025, "How to Scale Your Model", ch. 2; assumed of a 7x as of a v6e. GPUs: PCIe
# of the data sheets, halved.
CHIPS = {
  'TPU v4': Chip('TPU v4', 275e12, 32 * GIB, 1200e9, 300e9, 3.125e9, 15e9, dims=3),
  'TPU v5 lite': Chip('TPU v5e', 197e12, 16 * GIB, 819e9, 200e9, 3.125e9, 15e9, dims=2),
  'TPU v5e': Chip('TPU v5e', 197e12, 16 * GIB, 819e9, 200e9, 3.125e9, 15e9, dims=2),
  'TPU v5': Chip('TPU v5p', 459e12, 95 * GIB, 2765e9, 600e9, 6.25e9, 15e9, dims=3),
  'TPU v6 lite': Chip('TPU v6e', 918e12, 32 * GIB, 1638e9, 400e9, 12.5e9, 32e9, dims=2),
  'TPU v6e': Chip('TPU v6e', 918e12, 32 * GIB, 1638e9, 400e9, 12.5e9, 32e9, dims=2),
  'TPU7x': Chip('TPU7x', 2307e12, 192 * GIB, 7380e9, 600e9, 12.5e9, 32e9, dims=3, devices=2),
  'NVIDIA A100': Chip(
    'A100 80GB SXM', 312e12, 80 * 10**9, 2039e9, 300e9, 25e9, 32e9, dims=0, capability='8.0'
  ),
  'NVIDIA H100': Chip('H100 SXM', 989e12, 80 * 10**9, 3350e9, 450e9, 50e9, 64e9, dims=0, capability='9.0'),
  'NVIDIA H200': Chip('H200 SXM', 989e12, 141 * 10**9, 4800e9, 450e9, 50e9, 64e9, dims=0, capability='9.0'),
  'NVIDIA B200': Chip('B200', 2250e12, 180 * 10**9, 8000e9, 900e9, 50e9, 64e9, dims=0, capability='10.0'),
}


def find_chip(device_kind: str) -> Chip | None:
  """The chip of a `device_kind`; None if it is not in the table."""
  names = sorted((name for name in CHIPS if device_kind.startswith(name)), key=len)
  return CHIPS[names[-1]] if names else None


def cpu_core_count() -> int:
  """CPU cores that this process may use, as limited by taskset or Slurm."""
  # macOS has no CPU affinity.
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


def cpu_model() -> str:
  """The model name of the CPU; empty if the platform does not report it."""
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  names = (
    re.findall(r'^model name\s*:\s*(.*)$', cpuinfo.read_text(encoding='utf-8'), re.MULTILINE)
    if cpuinfo.is_file()
    else []
  )
  return (names or [platform.processor()])[0].strip()


def peak_flops() -> float | None:
  """Peak FLOP/s of all devices together; None if the chip is not in the table."""
  chip = find_chip(jax.devices()[0].device_kind)
  return chip and chip.device.flops * jax.device_count()
