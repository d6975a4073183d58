"""Gemma (Gemma Team 2024a)."""

from tfm.hf.families import _rope_fields, llama
from tfm.hf.families._config_fields import ConfigConstant, CustomField, MappedField, SpecArgument
from tfm.hf.families._field_converters import ALL_BIASES, GATED_ACTIVATIONS, value_map
from tfm.hf.families.protocol import Family, block_paths, norm


def fields(output):
  yield from llama.shared('hidden_act', num_key_value_heads=16, head_dim=256, tie_word_embeddings=True)
  yield MappedField('hidden_act', 'model.feed_forward', ACTIVATION, default='gelu_pytorch_tanh')
  yield CustomField(check_activations, lambda config: {})
  yield from shared()


def shared():
  """The fields that both generations share."""
  yield _rope_fields.position_field()
  yield ConfigConstant('model.scale_embeddings', True)
  yield ConfigConstant('model.mixer', 'softmax')
  yield SpecArgument('attention_bias', 'model.mixer', 'biases', ALL_BIASES, default=False, spec_default='')
  yield ConfigConstant('model.bias', False)
  yield CustomField(check_causal, lambda config: {})


# The first files have 'gelu' for its tanh approximation.
ACTIVATION = value_map(
  gelu_pytorch_tanh='geglu_tanh', gelu_new='geglu_tanh', gelu='geglu_tanh', silu='swiglu', relu='reglu'
)


def check_activations(hf_config):
  """Rejects files with two different activations."""
  other, activation = (
    hf_config.get('hidden_activation', None),
    hf_config.get('hidden_act', 'gelu_pytorch_tanh'),
  )
  if other is not None and GATED_ACTIVATIONS.read(other) != ACTIVATION.read(activation):
    raise ValueError(
      f'config.json: hidden_activation={other!r} is not supported with hidden_act={activation!r}; use null'
    )
  return {}


def check_causal(hf_config):
  if hf_config.get('use_bidirectional_attention', None):
    raise ValueError('config.json: use_bidirectional_attention=True is not supported; use False or null')
  return {}


def weights(config):
  yield from gemma_weights(config, input_layernorm='mixer_norm', post_attention_layernorm='feed_forward_norm')


def gemma_weights(config, **norms):
  """LLaMA's tensors, but norm scales are stored minus one."""
  m = config.model
  yield from llama.ends(config, offset=1.0)
  for i, block in enumerate(block_paths(config)):
    name = f'model.layers.{i}'
    yield from llama.attention(f'{name}.self_attn', f'{block}/mixer', m)
    yield from llama.feed_forward(f'{name}.mlp', f'{block}/feed_forward', m.bias)
    for hf_name, tfm_name in norms.items():
      yield from norm(f'{name}.{hf_name}', f'{block}/{tfm_name}', bias=False, offset=1.0)


FAMILIES = (
  Family(
    model_type='gemma',
    architectures={'GemmaForCausalLM': 'vocabulary', 'GemmaModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
