"""Gemma 2 (Gemma Team 2024b): every second layer has a window, logits have caps, branches have norms on both sides."""

from tfm.hf.families import gemma, llama
from tfm.hf.families.converters import GATED_ACTIVATIONS, SOFT_CAP
from tfm.hf.families.fields import ConfigConstant, CustomField, IgnoredFields, MappedField, SpecArgument
from tfm.hf.families.layers import window_masks
from tfm.hf.families.protocol import Family
from tfm.spec import parse


WINDOW = 4096


def fields(output):
  yield from llama.shared('hidden_act', num_key_value_heads=4, head_dim=256, tie_word_embeddings=True)
  yield MappedField('hidden_activation', 'model.feed_forward', GATED_ACTIVATIONS, default='gelu_pytorch_tanh')
  yield from gemma.common()
  yield SpecArgument(
    'attn_logit_softcapping', 'model.mixer', 'soft_cap', SOFT_CAP, default=50.0, spec_default=0.0
  )
  yield MappedField('final_logit_softcapping', 'model.output_soft_cap', SOFT_CAP, default=30.0)
  yield CustomField(score, scalar)
  yield window_masks(
    window,
    lambda i, hf_config: 'full_attention' if i % 2 else 'sliding_attention',
    lambda size, types: dict(sliding_window=WINDOW if size is None else size),
  )
  yield ConfigConstant('model.norm_placement', 'sandwich')
  yield IgnoredFields('hidden_act', 'cache_implementation')


def window(hf_config):
  """Its size, which some files say twice."""
  size = hf_config.get('sliding_window', WINDOW)
  if (again := hf_config.get('sliding_window_size', size)) != size:
    raise ValueError(
      f'config.json: sliding_window_size={again!r} is not understood beside sliding_window={size!r}; '
      'the same would do'
    )
  return size


def score(hf_config):
  """Dot products over √ of a number that need not be the channels of a head."""
  number = hf_config.get('query_pre_attn_scalar', 256)
  if not number > 0:
    raise ValueError(
      f'config.json: query_pre_attn_scalar={number!r} is not understood; a number above 0 would do'
    )
  return {
    'model.score': 'dot' if number == hf_config.get('head_dim', 256) else f'dot(scale={number**-0.5!r})'
  }


def scalar(config):
  call = parse(config['model.score'])
  if call.name != 'dot' or call.args:
    raise ValueError(
      f"config.model.score={config['model.score']!r} is not said by the family; 'dot(scale=…)' would be"
    )
  scale = call.kwargs.get('scale')
  number = config['model.head_width'] if scale is None else scale**-2
  return dict(query_pre_attn_scalar=round(number) if abs(number - round(number)) < 1e-6 * number else number)


def weights(config):
  yield from gemma.tensors(
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
