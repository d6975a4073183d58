"""GPUs that need not be here, as XLA's compiler is told of them."""

import dataclasses
import importlib.util

import jax
from jax.experimental import topologies

from tfm.parallel import chips


KIB, MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What a compiler has to know of a GPU; its memory and peaks are those of `tfm.parallel.chips`.

  Attributes:
    kind: as its driver calls it.
    cores: streaming multiprocessors. lanes: float32 units of one.
    shared, block: bytes of a multiprocessor's shared memory, and of it what one block may have.
    cache: bytes of its L2. clock: GHz, at most.
  """

  kind: str
  cores: int
  lanes: int
  shared: int
  block: int
  cache: int
  clock: float


# NVIDIA: the architecture papers of A100, H100 and Blackwell (multiprocessors, L2, clocks), and the CUDA C++ Programming Guide,
# "Technical specifications per compute capability" (shared memory, float32 units).
GPUS = {
  'a100': Gpu('NVIDIA A100-SXM4-80GB', 108, 64, 164 * KIB, 163 * KIB, 40 * MIB, 1.41),
  'h100': Gpu('NVIDIA H100 80GB HBM3', 132, 128, 228 * KIB, 227 * KIB, 50 * MIB, 1.98),
  'h200': Gpu('NVIDIA H200', 132, 128, 228 * KIB, 227 * KIB, 50 * MIB, 1.98),
  'b200': Gpu('NVIDIA B200', 148, 128, 228 * KIB, 227 * KIB, 126 * MIB, 1.965),
}
CUDNN = 9, 8
# Of all of them: what XLA calls them, and threads, registers and blocks that one may have.
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


def target(gpu: Gpu) -> str:
  """Its description, with a cuDNN beside it, in the text form of XLA's GpuTargetConfigProto."""
  chip = chips.find_chip(gpu.kind)
  major, minor = chip.capability.split('.')
  return TARGET.format(
    major=major,
    minor=minor,
    memory=chip.memory,
    bandwidth=chip.bandwidth,
    cudnn=CUDNN,
    **dataclasses.asdict(gpu),
  )


def installed() -> bool:
  """Whether JAX's plugin for CUDA is there, which compiles without a GPU, its driver and NVIDIA's libraries."""
  return importlib.util.find_spec('jax_cuda12_plugin') is not None


def devices(name: str, count: int, boxes: int) -> list[jax.Device]:
  """Those of `boxes` boxes of `count` GPUs each, one box after another; to compile for, by JAX's CUDA plugin alone."""
  from jax._src.cudnn import fused_attention_stablehlo

  # JAX asks cuDNN itself, which need not be installed, for its version before it has attention computed by it.
  fused_attention_stablehlo.check_cudnn_version = lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100
  return topologies.get_topology_desc(
    platform='cuda', topology_name=name, topology=f'{boxes} x 1 x {count}', target_config=target(GPUS[name])
  ).devices
