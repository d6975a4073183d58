"""XLA's options: for the training step presets by platform, further options, and what the environment sets;
and those of decoding.

They go to the compiler with the function (`jax.jit(compiler_options=…)`), not through XLA_FLAGS, which holds
for everything that a process compiles, and which must be set before JAX starts.
"""

import ast
import dataclasses
import os
import re
from collections.abc import Mapping

import jax

from tfm.errors import require, suggest


Value = bool | int | float | str
Options = dict[str, Value]
AUTO, NONE = 'auto', 'none'
# The environment variables in which XLA and libtpu read options.
VARIABLES = 'XLA_FLAGS', 'LIBTPU_INIT_ARGS'
# Those in which CUDA and NCCL, by which GPUs communicate, read theirs, some of them before JAX starts.
GPU_VARIABLES = re.compile('NCCL_|CUDA_DEVICE_MAX_CONNECTIONS$')


@dataclasses.dataclass(frozen=True)
class Preset:
  """Options that serve one purpose. They choose how and when the step is computed, not what it computes.

  Attributes:
    purpose: the end of a sentence that begins with "so that".
    options: platform → the options.
  """

  purpose: str
  options: Mapping[str, Options]


# TPU: MaxText's benchmarks/xla_flags_library.py (commit e591f30), whose groups are named beside the presets,
# and AXLearn's axlearn/common/compiler_options.py (34aed43). GPU: NVIDIA's JAX-Toolbox,
# docs/GPU_performance.md (bcbbfa5), and MaxText's configs/gpu/a3. Left out is what changes results:
# AXLearn's xla_tpu_spmd_rng_bit_generator_unsafe, and the all-reduce on SparseCores, which AXLearn reports to
# change losses.
PRESETS = {
  # On by default in libtpu.
  'latency_hiding': Preset(
    'collectives run beside computation',
    dict(
      gpu=dict(xla_gpu_enable_latency_hiding_scheduler=True),
      tpu=dict(xla_tpu_enable_latency_hiding_scheduler=True),
    ),
  ),
  # CF_FOR_ALL_REDUCE_AND_ALL_GATHER. On a GPU collectives are asynchronous by default.
  'async_collectives': Preset(
    'collectives are fused with the computation beside which they run',
    dict(
      tpu=dict(
        xla_enable_async_all_gather=True,
        xla_enable_async_all_reduce=True,
        xla_enable_async_collective_permute=True,
        xla_tpu_enable_async_collective_fusion=True,
        xla_tpu_enable_async_collective_fusion_fuse_all_gather=True,
        xla_tpu_enable_async_collective_fusion_multiple_steps=True,
        xla_tpu_overlap_compute_collective_tc=True,
      )
    ),
  ),
  # What JAX's optimization level O1 turns on for GPUs, besides the scheduler.
  'pipelined_collectives': Preset(
    'collectives of a layer run beside the computation of the next',
    dict(
      gpu=dict(
        xla_gpu_enable_pipelined_all_gather=True,
        xla_gpu_enable_pipelined_all_reduce=True,
        xla_gpu_enable_pipelined_reduce_scatter=True,
        xla_gpu_enable_while_loop_double_buffering=True,
      )
    ),
  ),
  # JAX-Toolbox: at least a layer's weights, or gradients, at once, which fills the links between hosts.
  'combined_collectives': Preset(
    'all collectives of a layer are combined into one',
    dict(
      gpu=dict(
        xla_gpu_all_gather_combine_threshold_bytes=2**33,
        xla_gpu_reduce_scatter_combine_threshold_bytes=2**33,
        xla_gpu_all_reduce_combine_threshold_bytes=2**33,
      )
    ),
  ),
  # JAX-Toolbox, for pipelines; the ring of attention sends likewise.
  'pipelined_permutes': Preset(
    'what a stage sends to the next travels beside its computation',
    dict(gpu=dict(xla_gpu_enable_pipelined_p2p=True, xla_gpu_collective_permute_decomposer_threshold=1024)),
  ),
  # JAX-Toolbox; reductions need NCCL_NVLS_ENABLE=1.
  'nccl_user_buffers': Preset(
    'NCCL sends arrays from where they are, without a copy',
    dict(gpu=dict(xla_gpu_enable_nccl_user_buffers=True)),
  ),
  # Wang et al. 2023, "Overlap communication with dependent computation via decomposition".
  'collective_matmul': Preset(
    'a product with a gathered or scattered operand is computed part by part as the parts arrive',
    dict(
      gpu=dict(xla_gpu_threshold_for_windowed_einsum_mib=0, xla_gpu_multi_streamed_windowed_einsum=True),
      tpu=dict(xla_jf_spmd_threshold_for_windowed_einsum_mib=0),
    ),
  ),
  # DISABLE_COLLECTIVE_MATMUL, which AXLearn sets on v6e. On a GPU there is none by default.
  'no_collective_matmul': Preset(
    'products wait for whole operands',
    dict(tpu=dict(xla_jf_spmd_threshold_for_windowed_einsum_mib=1_000_000)),
  ),
  # LAYOUT_FOR_ALL_REDUCE_SCATTER, REDUCE_SCATTER_FUSION.
  'reduce_scatter': Preset(
    'more all-reduces of which each device uses a part become reduce-scatters',
    dict(
      tpu=dict(
        xla_tpu_use_minor_sharding_for_major_trivial_input=True,
        xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1,
        xla_tpu_assign_all_reduce_scatter_layout=True,
      )
    ),
  ),
  # DATA_PARALLEL_OVERLAP.
  'data_parallel_overlap': Preset(
    'gradients are reduced between slices beside the computation of others',
    dict(
      tpu=dict(
        xla_tpu_enable_data_parallel_all_reduce_opt=True, xla_tpu_data_parallel_opt_different_sized_ops=True
      )
    ),
  ),
  # HOST_OFFLOAD_FLAGS.
  'host_offload': Preset(
    'transfers to and from host memory run beside computation',
    dict(
      tpu=dict(
        xla_tpu_enable_all_experimental_scheduler_features=True,
        xla_tpu_enable_scheduler_memory_pressure_tracking=True,
        xla_tpu_host_transfer_overlap_limit=24,
        xla_tpu_aggressive_opt_barrier_removal='ENABLED',
        xla_lhs_prioritize_async_depth_over_stall='ENABLED',
        xla_tpu_enable_ag_backward_pipelining=True,
        xla_should_allow_loop_variant_parameter_in_chain='ENABLED',
        xla_should_add_loop_invariant_op_in_chain='ENABLED',
        xla_max_concurrent_host_send_recv=100,
        xla_tpu_scheduler_percent_shared_memory_limit=100,
        xla_latency_hiding_scheduler_rerun=2,
      )
    ),
  ),
  # XLA's compiler for CPUs takes barriers away before it fuses: see `float32_gradients.operands_in_memory`.
  'barriers': Preset(
    'the operands of gradients are computed once, before their products',
    dict(cpu=dict(xla_disable_hlo_passes='cse_barrier_expander')),
  ),
  'ynnpack': Preset(
    'products are computed by the library YNNPACK',
    dict(cpu=dict(xla_cpu_experimental_ynn_fusion_type='LIBRARY_FUSION_TYPE_DOT')),
  ),
}


@dataclasses.dataclass(frozen=True)
class CompilerSettings:
  """The parsed section `config.compiler`.

  Attributes:
    flags: names of `PRESETS`, or `AUTO`; options: further ones, which override those of the presets.
  """

  flags: tuple[str, ...]
  options: Mapping[str, Value]

  def presets(self, platform: str, devices: int) -> tuple[str, ...]:
    """The presets for so many devices of a platform.

    `AUTO` is `latency_hiding` on several GPUs, where XLA leaves it off and NVIDIA's JAX images turn it on,
    and `barriers` on CPUs; elsewhere it is none.
    """
    chosen = {'cpu': ('barriers',), 'gpu': ('latency_hiding',) * (devices > 1)}.get(platform, ())
    return tuple(dict.fromkeys(name for flag in self.flags for name in (chosen if flag == AUTO else (flag,))))

  def resolve(self, platform: str, devices: int, environ: Mapping[str, str] = os.environ) -> Options:
    """The options for the compiler of a platform; those that the environment sets are left to it.

    Raises:
      ValueError: for a preset that has nothing for the platform, or two that contradict each other.
    """
    resolved, setters, field = {}, {}, f'config.compiler.flags={" ".join(self.flags)!r}'
    for name in self.presets(platform, devices):
      options = PRESETS[name].options
      require(
        platform in options,
        f'{field}: {name!r} has nothing for a {platform}, only for a {" and a ".join(options)}; leave it out',
      )
      for option, value in options[platform].items():
        other = setters.setdefault(option, name)
        require(
          resolved.setdefault(option, value) == value,
          f'{field}: {other!r} and {name!r} set {option} to different values; leave one of them out',
        )
    return beside_environment(resolved | dict(self.options), environ)

  def describe(self, platform: str, devices: int, environ: Mapping[str, str] = os.environ) -> str:
    """What is set, by what and why, in one line; '' if nothing is."""
    resolved, parts = self.resolve(platform, devices, environ), []
    for name in self.presets(platform, devices):
      chosen = f'{name}{" (chosen by auto)" * (name not in self.flags)}, so that {PRESETS[name].purpose}'
      parts.append(f'{chosen}: {format_options(PRESETS[name].options[platform].keys() & resolved, resolved)}')
    if self.options:
      parts.append(f'config.compiler.options: {format_options(self.options.keys() & resolved, resolved)}')
    names = [*VARIABLES, *sorted(filter(GPU_VARIABLES.match, environ)) * (platform == 'gpu')]
    parts += [f'{name}={environ[name]!r} of the environment' for name in names if environ.get(name)]
    return '; '.join(parts)


def format_options(names, options: Options) -> str:
  """`a=1 b=True`; `left to the environment` for no names."""
  return ' '.join(f'{name}={options[name]}' for name in options if name in names) or 'left to the environment'


def environment_options(environ: Mapping[str, str]) -> frozenset[str]:
  """The names of the options that the environment sets."""
  return frozenset(
    name for variable in VARIABLES for name in re.findall(r'(?<!\S)--(\w+)', environ.get(variable, ''))
  )


def beside_environment(options: Options, environ: Mapping[str, str] = os.environ) -> Options:
  """The options without those that the environment sets."""
  fixed = environment_options(environ)
  return {option: value for option, value in options.items() if option not in fixed}


def parse_presets(text: str) -> tuple[str, ...]:
  """'latency_hiding collective_matmul' → its names; 'none' → ().

  Raises:
    ValueError: for an unknown name.
  """
  names = tuple(text.split())
  known = AUTO, NONE, *PRESETS
  require(bool(names), f'{text!r} names no preset; use {NONE!r} for none')
  for name in names:
    require(name in known, f'{text!r} names {name!r}, which is no preset; {suggest(name, known)}')
  require(NONE not in names or len(names) == 1, f'{text!r} names presets beside {NONE!r}; leave that out')
  return () if names == (NONE,) else names


def parse_options(text: str) -> Options:
  """'xla_a=true xla_b=3' → {'xla_a': True, 'xla_b': 3}.

  Raises:
    ValueError: for what is not of that form, or sets an option twice.
  """
  options = {}
  for word in text.split():
    name, equals, value = word.partition('=')
    require(
      re.fullmatch(r'[a-z]\w+', name) is not None and bool(equals),
      f'{text!r} has {word!r}; write options as name=value, separated by spaces',
    )
    require(name not in options, f'{text!r} sets {name} twice; set it once')
    try:
      options[name] = ast.literal_eval({'true': 'True', 'false': 'False'}.get(value, value))
    except (ValueError, SyntaxError):
      options[name] = value
  return options


def require_accepted(options: Options) -> None:
  """Raises ValueError if the compiler of the attached devices does not know an option, or its value."""
  try:
    jax.jit(lambda: 0, compiler_options=options).lower().compile()
  except jax.errors.JaxRuntimeError as error:
    reason = str(error).splitlines()[0].removeprefix('INVALID_ARGUMENT: ')
    raise ValueError(
      f'config.compiler sets {format_options(options, options)}, which the compiler for a '
      f'{jax.default_backend()} rejects: {reason}'
    ) from error


# On a CPU the XLA of JAX 0.10 emits fusions by MLIR, or as it did before; later ones do by MLIR alone, and
# refuse the option. Without, compiling a decoding loop, whose layers are unrolled, takes some 80 MiB less
# for the GPT-2 of `tfm benchmark gpt2`, the peak of the process, and that of a beam search some 60. The
# loop is about 2 % slower, a beam search not that is seen (docs/results/speed.md), a training step 10 %.
WITHOUT_FUSION_EMITTERS = beside_environment(
  dict(xla_cpu_use_fusion_emitters=False) if jax.__version_info__ < (0, 11) else {}
)
