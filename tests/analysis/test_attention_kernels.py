"""FLOPs of attention kernels: how many products over query-key pairs those of a module make."""

# ruff: noqa: E501  (lines of compiled modules)

import pytest

from tfm.analysis import hlo
from tfm.analysis.attention_kernels import count_flops


MODULE = """HloModule f, is_scheduled=true

%body (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
{body}
}}

%condition (q: f32[8]) -> pred[] {{
  %q = f32[8]{{0}} parameter(0)
  ROOT %c = pred[] constant(true)
}}

ENTRY %f (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %w = f32[8]{{0}} while(%x), condition=%condition, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
}}
"""


def module(*kernels: tuple[str, str]) -> hlo.Module:
  """Three layers, each of which runs these (names, targets)."""
  lines = [
    f'  %{name}.{i} = f32[8]{{0}} custom-call(%p), custom_call_target="{target}"'
    for i, (name, target) in enumerate(kernels)
  ]
  return hlo.parse_module(MODULE.format(body='\n'.join(lines).replace('  %', '  ROOT %', 1)))


SPLASH = [(f'splash_mha_{name}_segmented', 'tpu_custom_call') for name in ('dq', 'dkv', 'fwd', 'fwd')]
FLASH = 'q_gradient', 'kv_gradients', 'forward'
CUDNN = [('cudnn-fmha', f'__cudnn$fmhaSoftmax{name}') for name in ('Backward', '', '')]


@pytest.mark.parametrize(
  'kernels, forward_passes',
  [
    (SPLASH[:3], (3 + 4 + 2) / 2),
    (SPLASH, (3 + 4 + 2 + 2) / 2),
    ([(f'flash_{name}', 'tpu_custom_call') for name in FLASH], (3 + 4 + 2) / 2),
    (
      [('call', f'__gpu$xla.gpu.triton", metadata={{op_name="f/flash_{name}/p"}}, a="') for name in FLASH],
      (3 + 4 + 2) / 2,
    ),
    (CUDNN[:2], (5 + 2) / 2),
    (CUDNN, (5 + 2 + 2) / 2),
    ([('mine', 'mosaic_gpu')], 3),
    ([('AllocateBuffer', 'AllocateBuffer')], 0),
  ],
)
def test_products_of_the_kernels_that_each_layer_runs(kernels, forward_passes):
  assert count_flops(module(*kernels), 10.0) == pytest.approx(10 * forward_passes)
