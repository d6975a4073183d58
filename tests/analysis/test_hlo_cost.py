"""Products and bytes of compiled functions, against what can be counted by hand."""

# ruff: noqa: E501  (lines of compiled modules)

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from tfm.analysis import hlo, topology
from tfm.analysis.hlo_cost import Strides, count_cost, overlapping_pairs
from tfm.layers.grouped_matmul import multiply_groups


def done(f, *shapes):
  text = jax.jit(f).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text()
  return count_cost(hlo.parse_module(text))


def test_a_product():
  one = done(lambda x, w: x @ w, (8, 16), (16, 4))
  assert one.flops == 2 * 8 * 16 * 4
  assert one.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)


def test_of_batches_and_heads():
  assert (
    done(lambda q, k: jnp.einsum('bthc,bshc->bhts', q, k), (2, 5, 3, 7), (2, 6, 3, 7)).flops
    == 2 * 2 * 3 * 5 * 6 * 7
  )


def test_a_scan_counts_as_often_as_it_runs_and_reads_a_slice_at_a_time():
  def f(x, ws):
    return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws)[0]

  one = done(f, (8, 16), (10, 16, 16))
  assert one.flops == 10 * 2 * 8 * 16 * 16
  # All of ws is read once in all, not ten times.
  assert one.bytes < 10 * 4 * (2 * 16 * 16 + 8 * 8 * 16)


def test_what_is_written_into_a_large_array_is_a_slice():
  def f(x):
    return jax.lax.scan(lambda c, _: (c * 1.5, jnp.sin(c)), x, None, length=100)

  assert done(f, (32,)).bytes < 100 * 4 * 32 * 10  # and not 100 times the result's 100 · 32


def test_filling_that_is_skipped_does_not_count():
  """Rows of four experts, of which a device has two, each with its even share."""
  M, E, I, O = 256, 2, 16, 32

  def f(x, kernels, weights):
    with jax.named_scope('useful:1:2'):
      y, gradients = jax.vjp(lambda *args: multiply_groups(*args, jnp.full(E, M // 4)), x, kernels)
    return gradients(y * weights)

  # The products of the rows, of their gradients and of the kernels'.
  assert done(f, (M, I), (E, I, O), (M, O)).flops == 3 * 2 * (M // 2) * I * O


RAGGED = """HloModule f, is_scheduled=true

ENTRY %f (x: bf16[64,16], w: bf16[2,16,32]) -> bf16[64,32] {
  %x = bf16[64,16]{1,0} parameter(0)
  %w = bf16[2,16,32]{2,1,0} parameter(1)
  ROOT %ragged-dot-none = bf16[64,32]{1,0} custom-call(%x, %w), custom_call_target="tpu_custom_call", frontend_attributes={ragged_dot_tiling="64,16,32"}, metadata={op_name="jit(f)/useful:1:4/cond/branch_0_fun/ragged_dot_general/ragged-dot-none"}
}
"""


def test_a_ragged_product_of_a_tpu():
  cost = count_cost(hlo.parse_module(RAGGED))
  assert cost.flops == 2 * 64 * 16 * 32 / 4
  assert cost.bytes == 2 * (64 * 16 + 2 * 16 * 32 + 64 * 32) / 4


# As libtpu and XLA for GPUs write transfers; S(5) is the memory of the host.
HOST_OF_A_TPU = """HloModule f, is_scheduled=true

ENTRY %f (x: bf16[1,64], i: s32[]) -> bf16[1,64] {
  %x = bf16[1,64]{1,0:T(8,128)} parameter(0)
  %i = s32[]{:T(128)} parameter(1)
  %buffer = bf16[6,64]{1,0:T(8,128)S(5)} custom-call(), custom_call_target="AllocateBuffer"
  %update-start = ((bf16[6,64]{1,0:T(8,128)S(5)}, bf16[1,64]{1,0:T(8,128)}, s32[]{:T(128)}, s32[]{:T(128)}), bf16[6,64]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) dynamic-update-slice-start(%buffer, %x, %i, %i)
  %update-done = bf16[6,64]{1,0:T(8,128)S(5)} dynamic-update-slice-done(%update-start)
  %slice-start = ((bf16[6,64]{1,0:T(8,128)S(5)}, s32[]{:T(128)}, s32[]{:T(128)}), bf16[1,64]{1,0:T(8,128)}, u32[]{:S(2)}) dynamic-slice-start(%update-done, %i, %i), dynamic_slice_sizes={1,64}
  %slice-done = bf16[1,64]{1,0:T(8,128)} dynamic-slice-done(%slice-start)
  %copy-start = (bf16[6,64]{1,0:T(8,128)}, bf16[6,64]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) copy-start(%update-done)
  %copy-done = bf16[6,64]{1,0:T(8,128)} copy-done(%copy-start)
  ROOT %within = bf16[1,64]{1,0:T(8,128)S(1)} copy(%slice-done)
}
"""
HOST_OF_A_GPU = """HloModule f, is_scheduled=true

%wrapped (buffer: bf16[6,64], x: bf16[1,64], i: s32[]) -> bf16[6,64] {
  %p.0 = bf16[6,64]{1,0:S(5)} parameter(0)
  %p.1 = bf16[1,64]{1,0} parameter(1)
  %p.2 = s32[] parameter(2)
  ROOT %update = bf16[6,64]{1,0:S(5)} dynamic-update-slice(%p.0, %p.1, %p.2, %p.2)
}

ENTRY %f (x: bf16[1,64], i: s32[]) -> bf16[6,64] {
  %x = bf16[1,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %buffer = bf16[6,64]{1,0:S(5)} custom-call(), custom_call_target="AllocateBuffer"
  %start = ((bf16[6,64]{1,0:S(5)}, bf16[1,64]{1,0}, s32[]), bf16[6,64]{1,0:S(5)}, u32[]) fusion-start(%buffer, %x, %i), kind=kCustom, calls=%wrapped
  ROOT %done = bf16[6,64]{1,0:S(5)} fusion-done(%start)
}
"""


def test_what_moves_to_the_host_and_back():
  """A row is 128 bytes; the device's memory is read or written once in each transfer."""
  tpu, gpu = (count_cost(hlo.parse_module(text)) for text in (HOST_OF_A_TPU, HOST_OF_A_GPU))
  assert (tpu.to_host, tpu.from_host) == (128, 7 * 128)
  assert (gpu.to_host, gpu.from_host) == (128, 0)
  small = 4 * 2  # the flag of a start and an index
  assert tpu.bytes == pytest.approx(128 + 7 * 128 + 128, abs=small)
  assert gpu.bytes == pytest.approx(128, abs=small)


@pytest.mark.slow
def test_a_loop_moves_each_layer_of_an_offloaded_array_once():
  """As the TPU's compiler makes it of JAX's own policy."""
  if not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=['x'],
    offload_src='device',
    offload_dst='pinned_host',
  )

  def layer(x, w):
    return jnp.sin(jnp.sin(checkpoint_name(x, 'x') @ w) @ w), None

  def loss(x, ws):
    return jax.lax.scan(jax.checkpoint(layer, policy=policy), x, ws)[0].sum()

  [device] = topology.devices('v5e:1x1', 1)
  where = jax.sharding.SingleDeviceSharding(device)
  x, ws = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where) for shape in ((1024, 256), (6, 256, 256)))
  text = jax.jit(jax.grad(loss, argnums=1)).lower(x, ws).compile().as_text()
  cost = count_cost(hlo.parse_module(text))
  assert cost.to_host == cost.from_host == 6 * 4 * 1024 * 256


@pytest.mark.parametrize(
  'labels, window, given, kernel, made',
  [
    # A plain product; the same with a head as a spatial axis (what a TPU has of [T, H·C] · [H, C, D] heads
    # apart).
    ('bf_io->bf', '', (8, 16), (16, 4), (8, 4)),
    ('0bf_0io->b0f', 'window={size=4 stride=3 pad=0_0 lhs_dilate=4}, ', (4, 8, 16), (4, 16, 5), (8, 4, 5)),
  ],
)
def test_a_convolution_that_is_a_product(labels, window, given, kernel, made):
  def written(shape):
    return f'f32[{",".join(map(str, shape))}]{{0}}'

  text = (
    f'ENTRY %main (x: f32[]) -> f32[] {{\n  %x = {written(given)} parameter(0)\n  %w = {written(kernel)} parameter(1)\n'
    f'  ROOT %y = {written(made)} convolution(%x, %w), {window}dim_labels={labels}\n}}\n'
  )
  heads = 4 if window else 1
  assert count_cost(hlo.parse_module(text)).flops == 2 * heads * 8 * 16 * made[-1]


def test_a_product_of_a_library():
  text = (
    'ENTRY %main (x: f32[]) -> f32[] {\n  %x = bf16[8,16]{1,0} parameter(0)\n  %w = bf16[16,4]{1,0} parameter(1)\n'
    '  ROOT %y = (bf16[8,4]{1,0}, s8[4194304]{0}) custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", backend_config='
    '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}\n}\n'
  )
  assert count_cost(hlo.parse_module(text)).flops == 2 * 8 * 16 * 4
  assert count_cost(hlo.parse_module(text.replace('__cublas', '__other'))).flops == 0


def test_a_real_convolution():
  """Five taps over a row of ten, filled with zeros to ten: the taps that meet the row."""
  assert overlapping_pairs(10, 5, 10, Strides(padding_low=2)) == 5 * 10 - 2 * (1 + 2)


def test_what_lies_beside_the_core_does_not_count():
  text = """
ENTRY %main (x: f32[]) -> f32[] {
  %x = f32[100]{0:T(128)} parameter(0)
  %start = (f32[100]{0:T(128)S(1)}, f32[100]{0:T(128)}, u32[]{:S(2)}) copy-start(%x)
  %near = f32[100]{0:T(128)S(1)} copy-done(%start)
  %sine = f32[100]{0:T(128)S(1)} sine(%near)
  ROOT %out = f32[100]{0:T(128)} negate(%sine)
}
"""
  assert count_cost(hlo.parse_module(text)).bytes == 400 + 400
