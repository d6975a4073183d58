"""FLOPs of attention kernels, which the text of a compiled module does not contain."""

import re

from tfm.analysis.hlo import Module


# The name or target of a kernel → its products over query-key pairs, and whether a layer runs it just once.
# The forward pass makes two: scores, and their sums over values. The backward pass makes five, as it makes
# the scores anew (Dao 2023, FlashAttention-2, algorithm 2). Splash and flash divide it into two kernels, and
# both make the scores and their gradient (jax 0.10, splash_attention_kernel.py). The gradient of a learned
# bias in flash is not counted.
KERNELS = {
  r'splash_mha_fwd': (2, False),
  r'splash_mha_dq': (3, False),
  r'splash_mha_dkv': (4, True),
  r'flash_forward': (2, False),
  r'flash_q_gradient': (3, False),
  r'flash_kv_gradients': (4, True),
  r'__cudnn\$fmha\w*Backward': (5, True),
  r'__cudnn\$fmha': (2, False),
}
UNKNOWN = re.compile(r'pallas_call|mosaic_gpu')


def count_flops(module: Module, pairs: float) -> float:
  """FLOPs of one device's attention kernels, for the pairs that the masks let through.

  Args:
    pairs: FLOPs of one device in a forward pass, which makes two products. Kernels that are not in the table
      count as the model does: three forward passes.
  """
  products = layers = unknown = 0
  for execution in module.executed():
    instruction = execution.instruction
    if instruction.opcode != 'custom-call':
      continue
    # Pallas names a kernel for a TPU by its instruction, and one for a GPU in the metadata alone.
    found = re.findall(r'(?:custom_call_target|op_name)="([^"]*)"', instruction.attributes)
    for pattern, (count, is_once_a_layer) in KERNELS.items():
      if re.search(pattern, ' '.join([instruction.name, *found])):
        products += execution.times * count
        layers += execution.times * is_once_a_layer
        break
    else:
      unknown += bool(UNKNOWN.search(instruction.attributes))
  if layers:
    return pairs * products / (2 * layers)
  return 3 * pairs if products or unknown else 0
