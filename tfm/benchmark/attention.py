"""Time and memory of one attention kernel, or of one mixer, at one length, measured in this process.

  python -m tfm.benchmark.attention kernel chunked window 4096
  python -m tfm.benchmark.attention mixer mamba 4096

prints the result of `process.print_passes`. One row, 8 heads of 64 channels (width 512), float32, one
document unless the variant packs several; `attention_torch` does the same with PyTorch.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping

from tfm.benchmark import process


@dataclasses.dataclass(frozen=True)
class Shape:
  """Rows, heads, channels of a head, and the type of numbers."""

  batch: int = 1
  heads: int = 8
  head_width: int = 64
  dtype: str = 'float32'

  @property
  def width(self) -> int:
    return self.heads * self.head_width


SHAPE = Shape()

# variant → fields that differ from causal dot-product attention.
VARIANTS = {
  'causal': {},
  'window': dict(mask='causal & window(256)'),
  'alibi': dict(position='alibi'),
  't5': dict(position='t5'),
  'soft cap': dict(soft_cap=50.0),
  'documents': dict(document=512),
  'prefix': dict(mask='prefix'),  # of a quarter of the row
  'sinks': dict(mask='causal & (window(256) | sinks(4))'),
}
KERNELS = ('dense', 'chunked')

# mixer → model fields, in sizes that papers use.
MIXERS = {
  'softmax, dense': dict(mixer='softmax', kernel='dense'),
  'softmax, chunked': dict(mixer='softmax', kernel='chunked'),
  'softmax, window(256)': dict(mixer='softmax', kernel='chunked', mask='causal & window(256)'),
  'gated': dict(mixer='gated', kernel='chunked'),
  'differential': dict(mixer='differential', kernel='chunked'),
  'forgetting': dict(mixer='forgetting', kernel='chunked', position='none'),
  'talking_heads': dict(mixer='talking_heads', kernel='dense'),
  'multi_token': dict(mixer='multi_token', kernel='dense'),
  'selective': dict(mixer='selective', kernel='dense'),
  'stick_breaking': dict(mixer='stick_breaking', kernel='dense', position='none'),
  'path': dict(mixer='path', kernel='dense', position='none'),
  'nystromformer': dict(mixer='nystromformer(landmarks=64)', position='none', mask='full'),
  'latent': dict(mixer='latent(rank=128, rope_width=32)', kernel='chunked'),
  'longformer': dict(
    mixer='longformer(global_tokens=16)', kernel='chunked', mask='causal & longformer(256, 16)'
  ),
  'reformer': dict(mixer='reformer(buckets=64, chunk=64)', position='none'),
  'linformer': dict(mixer='linformer(rank=256)', position='none', mask='full'),
  'linear': dict(mixer='linear', position='none'),
  'linear, favor': dict(mixer='linear(feature_map="favor")', position='none'),
  'gated_delta': dict(mixer='gated_delta', position='none'),
  'mamba': dict(mixer='mamba', position='none'),
  'mamba2': dict(mixer='mamba2', position='none'),
  'recurrent (lstm)': dict(mixer='recurrent', position='none'),
  'convolution': dict(mixer='convolution', position='none'),
  'short_convolution': dict(mixer='short_convolution', position='none'),
}


def make_kernel(name: str, variant: str, length: int, shape: Shape = SHAPE) -> tuple[Callable, tuple]:
  """`f(params, q, k, v) -> out` and its arguments."""
  import flax.linen as nn
  import jax
  import jax.numpy as jnp

  import tfm.kernels
  import tfm.masks
  import tfm.positions
  import tfm.scores
  from tfm import spec
  from tfm.kernels.protocol import Kernel
  from tfm.masks.protocol import Mask
  from tfm.positions.protocol import Position
  from tfm.scores.protocol import Score

  fields = dict(mask='causal', position='none', soft_cap=0.0, document=length) | VARIANTS[variant]
  B, H, C = shape.batch, shape.heads, shape.head_width
  mask = spec.build(fields['mask'], tfm.masks, Mask)
  prefix = jnp.full((B, length), length // 4) if mask.required_fields else None

  class Attention(nn.Module):
    """Score, bias and kernel of one layer."""

    @nn.compact
    def __call__(self, q, k, v):
      position = spec.factory(
        fields['position'], tfm.positions, Position, width=shape.width, heads=H, head_width=C, length=length
      )
      score = spec.factory('dot', tfm.scores, Score, head_width=C)
      layer = position(name='layer')
      index = jnp.broadcast_to(jnp.arange(length), (B, length))
      positions, segments = index % fields['document'], 1 + index // fields['document']
      return spec.build(name, tfm.kernels, Kernel)(
        q,
        k,
        v,
        score=score()(),
        bias=layer.bias(position(name='model').compute_table()),
        has_relative_bias=layer.has_relative_bias,
        mask=mask,
        q_positions=positions,
        k_positions=positions,
        q_segments=segments,
        k_segments=segments,
        k_prefix=prefix,
        soft_cap=fields['soft_cap'],
        layout='contiguous' if fields['document'] == length else 'packed',
      )

  qkv = tuple(jax.random.normal(jax.random.key(i), (B, length, H, C), shape.dtype) for i in range(3))
  params = nn.unbox(jax.jit(Attention().init)(jax.random.key(3), *qkv))
  return Attention().apply, (params, *qkv)


def make_mixer(fields: Mapping[str, str], length: int, shape: Shape = SHAPE) -> tuple[Callable, tuple]:
  """`f(params, x) -> y` of one mixer and its arguments; `fields` are those of the model."""
  import flax.linen as nn
  import jax

  from tfm.config import assemble
  from tfm.config.assemble import Experiment
  from tfm.config.overlay import complete
  from tfm.config.resolve import resolve_config
  from tfm.mixers.protocol import Context

  model = dict(width=shape.width, heads=shape.heads, dtype=shape.dtype) | fields
  c = resolve_config(complete(dict(data=dict(length=length), model=model)))
  module = assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()
  x = jax.random.normal(jax.random.key(0), (shape.batch, length, shape.width), shape.dtype)

  def run(params, x):
    return module.apply(params, x, None, Context.contiguous(x[..., 0]), None)[0]

  params = nn.unbox(
    jax.jit(lambda x: module.init(jax.random.key(1), x, None, Context.contiguous(x[..., 0]), None))(x)
  )
  return run, (params, x)


def main() -> None:
  """Measures the kernel or mixer that the command line names."""
  kind, *names, length = sys.argv[1:]
  free = process.limit_memory()
  import jax

  jax.config.update('jax_numpy_rank_promotion', 'raise')
  run, arguments = (
    make_mixer(MIXERS[names[0]], int(length)) if kind == 'mixer' else make_kernel(*names, int(length))
  )

  def loss(*arguments):
    return (run(*arguments) ** 2).sum()

  def compile_or_raise(f):
    compiled = jax.jit(f).lower(*arguments).compile()
    sizes = compiled.memory_analysis()
    if (needed := sizes.temp_size_in_bytes + sizes.output_size_in_bytes) > free:
      raise process.OutOfMemory(f'the computation needs {needed / 2**30:.1f} GiB')
    return lambda: jax.block_until_ready(compiled(*arguments))

  process.print_passes(
    compile_or_raise(run), lambda: compile_or_raise(jax.grad(loss, tuple(range(len(arguments)))))
  )


if __name__ == '__main__':
  main()
