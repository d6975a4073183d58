"""Qwen2 (Yang et al. 2024), and Qwen1.5 and 2.5."""

from tfm.errors import require
from tfm.hf.families import _rope_fields, llama
from tfm.hf.families._config_fields import ConfigConstant, IgnoredFields, SupportedValues
from tfm.hf.families._layer_patterns import window_masks
from tfm.hf.families.protocol import Family


def fields(output):
  yield from llama.shared(num_key_value_heads=32)
  yield _rope_fields.position_field()
  yield from window_fields()
  yield ConfigConstant('model.mixer', "softmax(biases='qkv')")
  yield ConfigConstant('model.bias', False)
  yield SupportedValues(use_mrope=False)


def window_fields():
  """A window in the layers from `max_window_layers` on, in those of `layer_types`, or in none."""

  def get_size(hf_config):
    window, first = (hf_config.get(*field) for field in (('sliding_window', 4096), ('max_window_layers', 28)))
    require(first is None or isinstance(first, int), f'config.json: max_window_layers={first} must be whole')
    return window if hf_config.get('use_sliding_window', False) else None

  def default_type(i, hf_config):
    return (
      'full_attention'
      if get_size(hf_config) is None or i < hf_config.get('max_window_layers', 28)
      else 'sliding_attention'
    )

  def write_size(window, types):
    # For older readers without `layer_types`.
    first = types.index('sliding_attention') if window else len(types)
    return dict(sliding_window=window, use_sliding_window=window is not None, max_window_layers=first)

  yield window_masks(get_size, default_type, write_size)
  yield IgnoredFields('max_window_layers')  # if there are `layer_types`


FAMILIES = (
  Family(
    model_type='qwen2',
    architectures={'Qwen2ForCausalLM': 'vocabulary', 'Qwen2Model': 'features'},
    fields=fields,
    weights=llama.weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
