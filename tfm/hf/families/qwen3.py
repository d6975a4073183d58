"""Qwen3 (Qwen Team 2025): norms over the channels of queries and keys."""

from tfm.hf.families import _rope_fields, llama, qwen2
from tfm.hf.families._config_fields import ConfigConstant, SpecArgument
from tfm.hf.families._field_converters import ALL_BIASES, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths


def fields(output):
  yield from llama.shared(num_key_value_heads=32, head_dim=128)
  yield _rope_fields.position_field()
  yield from qwen2.window_fields()
  yield ConfigConstant('model.mixer', 'softmax')
  yield SpecArgument(
    'rms_norm_eps', 'model.mixer', 'qk_norm', spec_argument('rmsnorm', 'epsilon', 1e-6), default=1e-6
  )
  yield SpecArgument('attention_bias', 'model.mixer', 'biases', ALL_BIASES, default=False, spec_default='')
  yield ConfigConstant('model.bias', False)


def weights(config):
  yield from llama.weights(config)
  for i, block in enumerate(block_paths(config)):
    for letter in 'qk':
      yield Weight(f'model.layers.{i}.self_attn.{letter}_norm.weight', f'{block}/mixer/{letter}_norm/scale')


FAMILIES = (
  Family(
    model_type='qwen3',
    architectures={'Qwen3ForCausalLM': 'vocabulary', 'Qwen3Model': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
