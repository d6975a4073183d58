"""The collectives of small functions whose collectives are known."""

# ruff: noqa: E501  (lines of compiled modules)

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tfm.analysis import collectives as reader
from tfm.analysis import hlo
from tfm.analysis.collectives import Collective, find_collectives
from tfm.parallel import mesh as meshes


SIZES = dict(data=2, fsdp=2, tensor=2)
BYTES = 16 * 8 * 4  # of X


def compiled(f, inside=PartitionSpec(), outside=PartitionSpec()):
  """The text of `f` of each device's own [16, 8]."""
  mesh = meshes.make(SIZES)
  mapped = jax.shard_map(f, mesh=mesh, in_specs=inside, out_specs=outside, check_vma=False)
  x = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, inside))
  return mesh.shape, jax.jit(mapped).lower(x).compile().as_text()


def found(f):
  shape, text = compiled(f)
  return find_collectives(text, shape)


@pytest.mark.parametrize(
  'f, expected',
  [
    (lambda x: jax.lax.psum(x, 'tensor'), Collective('all-reduce', ('tensor',), 2, 1, BYTES)),
    (lambda x: jax.lax.psum(x, 'data'), Collective('all-reduce', ('data',), 2, 1, BYTES)),
    (
      lambda x: jax.lax.psum(x, ('data', 'tensor')),
      Collective('all-reduce', ('data', 'tensor'), 4, 1, BYTES),
    ),
    (
      lambda x: jax.lax.psum(x, ('data', 'fsdp', 'tensor')),
      Collective('all-reduce', ('data', 'fsdp', 'tensor'), 8, 1, BYTES),
    ),
    # What is gathered is twice what each has, and what is scattered is what each has.
    (
      lambda x: jax.lax.all_gather(x, 'fsdp', tiled=True),
      Collective('all-gather', ('fsdp',), 2, 1, 2 * BYTES),
    ),
    (
      lambda x: jax.lax.psum_scatter(x, 'fsdp', tiled=True),
      Collective('reduce-scatter', ('fsdp',), 2, 1, BYTES),
    ),
    (
      lambda x: jax.lax.all_to_all(x, 'data', 0, 1, tiled=True),
      Collective('all-to-all', ('data',), 2, 1, BYTES),
    ),
    (
      lambda x: jax.lax.ppermute(x, 'tensor', [(0, 1), (1, 0)]),
      Collective('collective-permute', ('tensor',), 2, 1, BYTES),
    ),
  ],
)
def test_kinds_and_axes(f, expected):
  assert found(f) == [expected]


@pytest.mark.parametrize(
  'kind, f',
  [
    ('all-reduce', lambda x: jax.lax.psum(x, 'fsdp')),
    ('collective-permute', lambda x: jax.lax.ppermute(x, 'fsdp', [(0, 1), (1, 0)])),
    ('all-gather', lambda x: jax.lax.all_gather(x, 'fsdp').sum(0)),
  ],
)
def test_a_scan_counts_its_body_as_often_as_it_runs(kind, f):
  def scanned(x):
    def body(c, _):
      def inner(c, _):
        return f(jnp.sin(c)), None

      return jax.lax.scan(inner, f(c), None, length=3)[0], None

    return jax.lax.scan(body, f(x), None, length=5)[0]

  [one] = found(scanned)
  times = 1 + 5 * (1 + 3)
  whole = BYTES * (2 if kind == 'all-gather' else 1)
  assert one == Collective(kind, ('fsdp',), 2, times, times * whole)


def test_what_the_compiler_puts_in_is_found():
  """Contracting an axis that is cut costs an all-reduce over it, and nothing else."""
  mesh = meshes.make(SIZES)

  def of(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

  product = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(mesh, PartitionSpec('data')))
  text = product.lower(of((16, 8), 'data', 'tensor'), of((8, 4), 'tensor')).compile().as_text()
  assert find_collectives(text, mesh.shape) == [Collective('all-reduce', ('tensor',), 2, 1, 8 * 4 * 4)]


def test_nothing_is_sent_within_one_device():
  shape, text = compiled(lambda x: x + 1)
  assert find_collectives(text, shape) == []


def test_a_loop_without_a_known_end():
  shape, text = compiled(
    lambda x: jax.lax.while_loop(lambda x: jnp.all(x < 9), lambda x: jax.lax.psum(x * 1.5, 'data'), x)
  )
  [once] = [one for one in find_collectives(text, shape) if one.axes == ('data',)]
  assert once.least and once.count == 1 and str(once).startswith('all-reduce over data (2): at least 1 times')
  assert [one for one in find_collectives(text, shape, unknown_trip_count=4) if one.axes == ('data',)] == [
    Collective('all-reduce', ('data',), 2, 4, 4 * BYTES)
  ]


def test_what_is_sent():
  """Of an all-reduce a device sends twice what it sends of either half of it."""
  halves = [Collective(kind, ('data',), 4, 1, 1000) for kind in ('reduce-scatter', 'all-gather')]
  assert sum(one.sent for one in halves) == Collective('all-reduce', ('data',), 4, 1, 1000).sent == 1500
  assert Collective('collective-permute', ('data',), 2, 1, 1000).sent == 1000


@pytest.mark.parametrize(
  'written, groups',
  [
    ('replica_groups={{0,1,2,3},{4,5,6,7}}', [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ('replica_groups=[2,4]<=[8]', [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ('replica_groups=[4,2]<=[2,4]T(1,0)', [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ('replica_groups=[2,4]<=[2,2,2]T(1,0,2)', [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ("replica_groups=mesh['x'=2,'y'=4] {'x'}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ("replica_groups=mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'x'}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ("replica_groups=mesh['x'=2,'y'=4] {'y':(1)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ("replica_groups=mesh['x'=2,'y'=4] {'x','y':(2)2}", [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ('replica_groups={}', [tuple(range(8))]),
    ('source_target_pairs={{0,1},{1,2},{2,0}}', [(0, 1), (1, 2), (2, 0)]),
  ],
)
def test_groups(written, groups):
  assert sorted(reader.parse_groups(f'channel_id=1, {written}, dimensions={{0}}', SIZES)) == sorted(groups)


def test_unsupported_notation_of_groups():
  with pytest.raises(ValueError, match='unsupported notation'):
    reader.parse_groups('replica_groups=<whatever>', SIZES)


# As a TPU's compiler writes: layouts with tiles, a loop whose condition alone has its end, a pair of start
# and done, a collective in an asynchronous computation, and a reduce-scatter as a fusion.
TPU = """
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.3 (input: f32[16,8]) -> f32[8,8] {
  %input = f32[16,8]{1,0:T(8,128)} parameter(0)
  %all-reduce.9 = f32[16,8]{1,0:T(8,128)} all-reduce(%input), channel_id=7, replica_groups=[4,2]<=[8], to_apply=%add
  %place = s32[]{:T(128)} constant(0)
  ROOT %cut = f32[8,8]{1,0:T(8,128)} dynamic-slice(%all-reduce.9, %place, %place), dynamic_slice_sizes={8,8}
}

%exchange (part: bf16[16,8]) -> bf16[16,8] {
  %part = bf16[16,8]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-to-all.1 = bf16[16,8]{1,0:T(8,128)(2,1)} all-to-all(%part), channel_id=3, replica_groups={{0,4},{1,5},{2,6},{3,7}}
}

%body (carry: (s32[], f32[16,8], bf16[16,8])) -> (s32[], f32[16,8], bf16[16,8]) {
  %carry = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)S(1)}, /*index=2*/bf16[16,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %x = f32[16,8]{1,0:T(8,128)S(1)} get-tuple-element(%carry), index=1
  %y = bf16[16,8]{1,0:T(8,128)(2,1)} get-tuple-element(%carry), index=2
  %half = f32[8,8]{1,0:T(8,128)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3
  %start = (f32[8,8]{1,0:T(8,128)}, f32[16,8]{1,0:T(8,128)}) all-gather-start(%half), channel_id=5, replica_groups=[4,2]<=[8], dimensions={0}
  %moved = ((bf16[16,8]{1,0}), bf16[16,8]{1,0}, u32[]{:S(2)}) async-start(%y), calls=%exchange
  %whole = f32[16,8]{1,0:T(8,128)S(1)} all-gather-done(%start)
  %arrived = bf16[16,8]{1,0:T(8,128)(2,1)} async-done(%moved), calls=%exchange
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i, %one)
  ROOT %after = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)S(1)}, bf16[16,8]{1,0:T(8,128)(2,1)}) tuple(%next, %whole, %arrived)
}

%below (carry.1: (s32[], f32[16,8], bf16[16,8])) -> pred[] {
  %carry.1 = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)S(1)}, bf16[16,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %n = s32[]{:T(128)} constant(6)
  %i.1 = s32[]{:T(128)} get-tuple-element(%carry.1), index=0
  ROOT %is = pred[]{:T(512)} compare(%i.1, %n), direction=LT
}

ENTRY %main (x.1: f32[16,8], y.1: bf16[16,8]) -> f32[16,8] {
  %x.1 = f32[16,8]{1,0:T(8,128)S(1)} parameter(0)
  %y.1 = bf16[16,8]{1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %begin = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)S(1)}, bf16[16,8]{1,0:T(8,128)(2,1)}) tuple(%zero, %x.1, %y.1)
  %loop = (s32[]{:T(128)}, f32[16,8]{1,0:T(8,128)S(1)}, bf16[16,8]{1,0:T(8,128)(2,1)}) while(%begin), condition=%below, body=%body
  ROOT %end = f32[16,8]{1,0:T(8,128)S(1)} get-tuple-element(%loop), index=1
}
"""


def test_as_a_tpu_has_it():
  assert find_collectives(TPU, SIZES) == [
    Collective('all-gather', ('tensor',), 2, 6, 6 * BYTES),
    Collective('reduce-scatter', ('tensor',), 2, 6, 6 * BYTES),
    Collective('all-to-all', ('data',), 2, 6, 6 * BYTES // 2),
  ]


RING = """
%step (i.2: u32[], by: u32[]) -> (u32[], u32[]) {
  %i.2 = u32[]{:T(128)} parameter(0)
  %by = u32[]{:T(128)} parameter(1)
  %more = u32[]{:T(128)} add(%i.2, %by)
  ROOT %both = (u32[]{:T(128)}, u32[]{:T(128)}) tuple(%by, %more)
}

%begun (half: f32[8,8]) -> (f32[8,8], u32[]) {
  %half = f32[8,8]{1,0} parameter(0)
  %all-gather.1 = f32[16,8]{1,0} all-gather(%half), channel_id=9, replica_groups=[4,2]<=[8], dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %chain = (f32[16,8]{1,0}, u32[]{:S(2)}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%meanwhile (half.1: f32[8,8]) -> f32[16,8] {
  %half.1 = f32[8,8]{1,0} parameter(0)
  ROOT %all-gather.2 = f32[16,8]{1,0} all-gather(%half.1), channel_id=9, replica_groups=[4,2]<=[8], dimensions={0}, frontend_attributes={chain_id="0"}
}

%body (carry: (f32[8,8], u32[])) -> (f32[8,8], u32[]) {
  %carry = (f32[8,8]{1,0}, u32[]{:T(128)}) parameter(0)
  %x = f32[8,8]{1,0} get-tuple-element(%carry), index=0
  %i = u32[]{:T(128)} get-tuple-element(%carry), index=1
  %kernel = f32[8,8]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"what":"{\\"block\\": 512}"
}}, metadata={op_name="kernel"}
  %start.1 = (f32[8,8]{1,0}, f32[8,8]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%kernel), channel_id=1, source_target_pairs={{0,2},{2,0},{1,3},{3,1},{4,6},{6,4},{5,7},{7,5}}
  %done.1 = f32[8,8]{1,0} collective-permute-done(%start.1)
  %half.2 = f32[16,8]{1,0} fusion(%x), kind=kOutput, calls=%meanwhile
  %two = u32[]{:T(128)} constant(2)
  %grown = (u32[]{:T(128)}, u32[]{:T(128)}) fusion(%i, %two), kind=kLoop, calls=%step
  %next = u32[]{:T(128)} get-tuple-element(%grown), index=1
  ROOT %after = (f32[8,8]{1,0}, u32[]{:T(128)}) tuple(%done.1, %next)
}

%below (carry.1: (f32[8,8], u32[])) -> pred[] {
  %n = u32[]{:T(128)} constant(8)
  %carry.1 = (f32[8,8]{1,0}, u32[]{:T(128)}) parameter(0)
  %i.1 = u32[]{:T(128)} get-tuple-element(%carry.1), index=1
  ROOT %is = pred[]{:T(512)} compare(%i.1, %n), direction=LT
}

ENTRY %main (x.1: f32[8,8]) -> f32[8,8] {
  %x.1 = f32[8,8]{1,0} parameter(0)
  %first = (f32[16,8]{1,0}, u32[]{:S(2)}) fusion(%x.1), kind=kOutput, calls=%begun
  %one = u32[]{:T(128)} constant(1)
  %kept = u32[]{:T(128)S(6)} copy(%one)
  %begin = (f32[8,8]{1,0}, u32[]{:T(128)}) tuple(%x.1, %kept)
  %loop = (f32[8,8]{1,0}, u32[]{:T(128)}) while(%begin), condition=%below, body=%body
  ROOT %end = f32[8,8]{1,0} get-tuple-element(%loop), index=0
}
"""


# Two slices of eight TPUs: an all-reduce of what each device has of an array, and what a stage hands to the
# next.
SLICES = """
HloModule jit_train, is_scheduled=true, entry_computation_layout={()->f32[72,8,128]{2,1,0:T(8,128)}}

ENTRY %main (p: f32[72,8,128], q: f32[1,256,384]) -> f32[72,8,128] {
  %p = f32[72,8,128]{2,1,0:T(8,128)} parameter(0)
  %q = f32[1,256,384]{2,1,0:T(8,128)} parameter(1)
  %after-all.1 = token[] after-all(), frontend_attributes={MegascaleRendezvousKeyName="all-reduce.1_0"}
  %send.1 = (f32[72,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%p, %after-all.1), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.1_0",_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %send-done.1 = token[] send-done(%send.1), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %after-all.2 = token[] after-all(), frontend_attributes={MegascaleRendezvousKeyName="collective-permute.5_0"}
  %send.2 = (f32[1,256,384]{2,1,0:T(8,128)}, u32[], token[]) send(%q, %after-all.2), channel_id=6, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_target={{100000->200000},{100001->200001}},_xla_megascale_transfer_type="ONE_TO_ONE"}
  %send-done.2 = token[] send-done(%send.2), channel_id=6, is_host_transfer=true
  %recv.1 = (f32[72,8,128]{2,1,0:T(8,128)}, u32[], token[]) recv(%after-all.1), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv-done.1 = (f32[72,8,128]{2,1,0:T(8,128)}, token[]) recv-done(%recv.1), channel_id=1, is_host_transfer=true
  ROOT %got = f32[72,8,128]{2,1,0:T(8,128)} get-tuple-element(%recv-done.1), index=0
}
"""


def test_what_slices_exchange():
  sizes = dict(data=2, fsdp=8)
  reduced, handed = find_collectives(SLICES, sizes)
  assert (
    reduced == Collective('all-reduce', ('data',), 2, 1, 72 * 8 * 128 * 4, between=True)
    and reduced.sent == reduced.bytes
  )
  assert handed == Collective('collective-permute', ('data',), 2, 1, 256 * 384 * 4, between=True)
  assert [one.axes for one in find_collectives(SLICES, dict(stage=2, fsdp=8), slice_axis='stage')] == [
    ('stage',)
  ] * 2
  [of_four] = find_collectives(
    SLICES.replace('{1,2}x', '{1:4}x').replace('ONE_TO_ONE', 'NONE').replace('send(%q', 'copy(%q'), sizes
  )
  assert of_four.group == 4 and of_four.sent == 1.5 * of_four.bytes


def test_a_ring_of_permutes_beside_a_gather_that_goes_on():
  """The counter goes 1, 3, 5, 7; the gather is begun before the loop and written again into what computes
  meanwhile.
  """
  assert find_collectives(RING, SIZES) == [
    Collective('all-gather', ('tensor',), 2, 1, BYTES),
    Collective('collective-permute', ('fsdp',), 2, 4, 4 * BYTES // 2),
  ]


def test_where_an_array_lies():
  result = hlo.parse_module(TPU).computations['body']
  assert [shape.memory for shape in result['carry'].shapes] == [0, 1, 0]
  assert result['carry'].bytes == 4 + BYTES + BYTES // 2


def test_text_that_is_no_module():
  with pytest.raises(ValueError, match='no ENTRY'):
    hlo.parse_module('FileNotFoundError')
