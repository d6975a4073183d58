"""Peak matrix throughput of the chips that publish one, for MFU."""

import jax

# device_kind, or how it begins → dense bfloat16 FLOP/s of one JAX device, from the makers' data
# sheets: Google Cloud TPU system architecture pages; NVIDIA A100, H100, H200, B200 data sheets
# (without sparsity).
PEAK_FLOPS = {
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5p': 459e12,
  'TPU v5': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  'NVIDIA A100': 312e12,
  'NVIDIA H100': 989e12,
  'NVIDIA H200': 989e12,
  'NVIDIA B200': 2250e12,
}


def peak_flops() -> float | None:
  """Peak FLOP/s of all devices together; None where the chip is not in the table."""
  kind = jax.devices()[0].device_kind
  for name in sorted(PEAK_FLOPS, key=len, reverse=True):
    if kind.startswith(name):
      return PEAK_FLOPS[name] * jax.device_count()
  return None
