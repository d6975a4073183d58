"""Qwen2 (Yang et al. 2024), and Qwen1.5 and 2.5."""

from tfm.hf.families import llama, rope
from tfm.hf.families.fields import Always, Ignored, Only
from tfm.hf.families.layers import windows
from tfm.hf.families.protocol import Family


def fields(output):
  yield from llama.shared(num_key_value_heads=32)
  yield rope.field()
  yield from windowed()
  yield Always('model.mixer', "softmax(biases='qkv')")
  yield Always('model.bias', False)
  yield Only(use_mrope=False)


def windowed():
  """A window for the upper layers, from one on, or for those that are named; or for none."""

  def size(given):
    window = given.take('sliding_window', 4096)
    return window if given.take('use_sliding_window', False) else None

  def usual(i, given):
    return (
      'full_attention'
      if size(given) is None or i < given.take('max_window_layers', 28)
      else 'sliding_attention'
    )

  def written(window, types):
    # For readers that know no `layer_types`.
    first = types.index('sliding_attention') if window else len(types)
    return dict(sliding_window=window, use_sliding_window=window is not None, max_window_layers=first)

  yield windows(size, usual, written)
  yield Ignored('max_window_layers')  # where `layer_types` says


FAMILIES = (
  Family(
    model_type='qwen2',
    architectures={'Qwen2ForCausalLM': 'vocabulary', 'Qwen2Model': 'features'},
    fields=fields,
    weights=llama.weights,
    prefix='model.',
    ignored=llama.IGNORED,
  ),
)
