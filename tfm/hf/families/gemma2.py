"""Gemma 2 (Gemma Team 2024b): every second layer has a window, soft caps on logits, norms before and after
each branch.
"""

from tfm.hf.families import gemma, llama
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SpecArgument,
)
from tfm.hf.families._field_converters import GATED_ACTIVATIONS, SOFT_CAP
from tfm.hf.families._layer_patterns import window_masks
from tfm.hf.families.protocol import Family
from tfm.spec import parse


WINDOW = 4096


def fields(output):
  yield from llama.shared('hidden_act', num_key_value_heads=4, head_dim=256, tie_word_embeddings=True)
  yield MappedField('hidden_activation', 'model.feed_forward', GATED_ACTIVATIONS, default='gelu_pytorch_tanh')
  yield from gemma.shared()
  yield SpecArgument(
    'attn_logit_softcapping', 'model.mixer', 'soft_cap', SOFT_CAP, default=50.0, spec_default=0.0
  )
  yield MappedField('final_logit_softcapping', 'model.output_soft_cap', SOFT_CAP, default=30.0)
  yield CustomField(read_score, write_score)
  yield window_masks(
    read_window,
    lambda i, hf_config: 'full_attention' if i % 2 else 'sliding_attention',
    lambda size, types: dict(sliding_window=WINDOW if size is None else size),
  )
  yield ConfigConstant('model.norm_placement', 'sandwich')
  yield IgnoredFields('hidden_act', 'cache_implementation')


def read_window(hf_config):
  """The window, which some files have twice."""
  size = hf_config.get('sliding_window', WINDOW)
  if (other := hf_config.get('sliding_window_size', size)) != size:
    raise ValueError(
      f'config.json: sliding_window_size={other!r} is not supported with sliding_window={size!r}; use '
      'the same value'
    )
  return size


def read_score(hf_config):
  """Dot products over √query_pre_attn_scalar, which may differ from the head width."""
  number = hf_config.get('query_pre_attn_scalar', 256)
  if not number > 0:
    raise ValueError(f'config.json: query_pre_attn_scalar={number!r} is not supported; use a number above 0')
  return {
    'model.score': 'dot' if number == hf_config.get('head_dim', 256) else f'dot(scale={number**-0.5!r})'
  }


def write_score(config):
  call = parse(config['model.score'])
  if call.name != 'dot' or call.args:
    raise ValueError(
      f"config.model.score={config['model.score']!r} is not supported by the family; use 'dot(scale=…)'"
    )
  scale = call.kwargs.get('scale')
  number = config['model.head_width'] if scale is None else scale**-2
  return dict(query_pre_attn_scalar=round(number) if abs(number - round(number)) < 1e-6 * number else number)


def weights(config):
  yield from gemma.gemma_weights(
    config,
    input_layernorm='mixer_norm',
    post_attention_layernorm='mixer_norm_after',
    pre_feedforward_layernorm='feed_forward_norm',
    post_feedforward_layernorm='feed_forward_norm_after',
  )


FAMILIES = (
  Family(
    model_type='gemma2',
    architectures={'Gemma2ForCausalLM': 'vocabulary', 'Gemma2Model': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
