"""Mistral 7B (Jiang et al. 2023)."""

from tfm.hf.families import _rope_fields, llama
from tfm.hf.families._config_fields import ConfigConstant, MappedField
from tfm.hf.families._layer_patterns import WINDOW
from tfm.hf.families.protocol import Family


def fields(output):
  yield from llama.shared(num_key_value_heads=8)
  yield _rope_fields.position_field()
  yield MappedField('sliding_window', 'model.mask', WINDOW, default=4096)
  yield ConfigConstant('model.mixer', 'softmax')
  yield ConfigConstant('model.bias', False)


FAMILIES = (
  Family(
    model_type='mistral',
    architectures={'MistralForCausalLM': 'vocabulary', 'MistralModel': 'features'},
    fields=fields,
    weights=llama.weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
