"""Descriptions of GPUs for XLA's compiler, to compile for GPUs that are not attached."""

import dataclasses
import importlib.util

import jax
from jax.experimental import topologies

from tfm.parallel import chip_specs


KIB, MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class Gpu:
  """The properties of a GPU that the compiler needs; memory and peaks are in `tfm.parallel.chip_specs`.

  Attributes:
    kind: device kind, as its driver reports it.
    cores: streaming multiprocessors. lanes: float32 units per multiprocessor.
    shared, block: bytes of shared memory per multiprocessor, and the most that one block may use.
    cache: bytes of L2. clock: maximum GHz.
  """

  kind: str
  cores: int
  lanes: int
  shared: int
  block: int
  cache: int
  clock: float


# NVIDIA: the architecture papers of A100, H100 and Blackwell (multiprocessors, L2, clocks), and the CUDA C++
# Programming Guide, "Technical specifications per compute capability" (shared memory, float32 units).
GPUS = {
  'a100': Gpu('NVIDIA A100-SXM4-80GB', 108, 64, 164 * KIB, 163 * KIB, 40 * MIB, 1.41),
  'h100': Gpu('NVIDIA H100 80GB HBM3', 132, 128, 228 * KIB, 227 * KIB, 50 * MIB, 1.98),
  'h200': Gpu('NVIDIA H200', 132, 128, 228 * KIB, 227 * KIB, 50 * MIB, 1.98),
  'b200': Gpu('NVIDIA B200', 148, 128, 228 * KIB, 227 * KIB, 126 * MIB, 1.965),
}
CUDNN = 9, 8
# The target description of any of them; thread, register and block limits are common.
TARGET = """
platform_name: "CUDA"
device_description_str: "{kind}"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} }}
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {cores}
  fpus_per_core: {lanes}
  shared_memory_per_core: {shared}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {block}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth:.0f}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
"""


def target_description(gpu: Gpu) -> str:
  """The GPU's description in the text form of XLA's GpuTargetConfigProto, with a cuDNN version."""
  chip = chip_specs.find_chip(gpu.kind)
  major, minor = chip.capability.split('.')
  return TARGET.format(
    major=major,
    minor=minor,
    memory=chip.memory,
    bandwidth=chip.bandwidth,
    cudnn=CUDNN,
    **dataclasses.asdict(gpu),
  )


def is_cuda_plugin_installed() -> bool:
  """Whether JAX's CUDA plugin is installed; it compiles without a GPU, a driver or NVIDIA's libraries."""
  return any(importlib.util.find_spec(f'jax_cuda{version}_plugin') for version in (12, 13))


def devices(name: str, count: int, hosts: int) -> list[jax.Device]:
  """The devices of `hosts` hosts with `count` GPUs each, host after host, for compilation only."""
  from jax._src.cudnn import fused_attention_stablehlo

  # JAX queries the installed cuDNN for its version before it lowers fused attention; it need not be installed
  # here.
  fused_attention_stablehlo.check_cudnn_version = lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100
  return topologies.get_topology_desc(
    platform='cuda',
    topology_name=name,
    topology=f'{hosts} x 1 x {count}',
    target_config=target_description(GPUS[name]),
  ).devices
