"""DeepSeek-V2 (DeepSeek-AI 2024): latent attention, and experts in all but the first layers."""

import math

from tfm.hf.families import _rope_fields, llama, mixtral
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  SpecArgument,
  SupportedValues,
)
from tfm.hf.families._field_converters import GATED_ACTIVATIONS, MISSING, Converter, format_spec
from tfm.hf.families._layer_patterns import layer_count, layer_pattern, layer_sections, layer_values
from tfm.hf.families.protocol import Family, Part, Weight, block_paths, norm
from tfm.spec import parse


POSITION = _rope_fields.position_field(interleaved=True)


def fields(output):
  yield from llama.shared('hidden_act', 'num_key_value_heads', 'head_dim', 'intermediate_size')
  yield CustomField(read_attention, write_attention)
  yield ConfigConstant('model.bias', False)
  yield from mixtral.experts('n_routed_experts', default_count=64, default_top_k=MISSING)
  yield SpecArgument(
    'n_shared_experts', 'model.feed_forward', 'shared', ZERO_AS_NONE, default=2, spec_default=0
  )
  yield SpecArgument('routed_scaling_factor', 'model.feed_forward', 'scale', default=1.0, spec_default=1.0)
  yield SpecArgument(
    'norm_topk_prob', 'model.feed_forward', 'normalize', FALSE_ONLY, default=False, spec_default=True
  )
  yield SpecArgument('aux_loss_alpha', 'model.feed_forward', 'balance', default=0.001, spec_default=0.01)
  yield CustomField(read_layers, write_layers)
  yield CustomField(check_routing, lambda config: dict(topk_method='greedy', n_group=1, topk_group=1))
  yield SupportedValues(attention_bias=False, mlp_bias=False, moe_layer_freq=1, scoring_func='softmax')
  # Widths that follow from other fields, and training.
  yield IgnoredFields(
    'head_dim', 'qk_head_dim', 'ep_size', 'seq_aux', 'output_router_logits', 'router_aux_loss_coef'
  )


def read_attention(hf_config):
  heads, groups = hf_config.get('num_attention_heads'), hf_config.get('num_key_value_heads', None)
  if groups not in (None, heads):
    raise ValueError(
      f'config.json: num_key_value_heads={groups!r} is not supported; use num_attention_heads={heads}'
    )
  plain, rotated = hf_config.get('qk_nope_head_dim', 128), hf_config.get('qk_rope_head_dim', 64)
  kwargs = dict(rank=hf_config.get('kv_lora_rank', 512), rope_width=rotated)
  if (rank := hf_config.get('q_lora_rank', 1536)) is not None:
    kwargs['query_rank'] = rank
  if (values := hf_config.get('v_head_dim', 128)) != plain:
    kwargs['value_width'] = values
  for name in ('rope_parameters', 'rope_scaling'):
    scaling = hf_config.get(name, None) or {}
    if scaling.get('mscale_all_dim') and not scaling.get('mscale'):
      raise ValueError(
        f'config.json: {name}.mscale_all_dim={scaling["mscale_all_dim"]!r} is not supported without mscale'
      )
  position = POSITION.read_fields(hf_config)
  return position | {
    'model.mixer': format_spec('latent', kwargs),
    'model.head_width': plain,
    'model.score': format_score(position['model.position'], plain + rotated),
  }


def format_score(position, channels):
  """Dot products over √channels, times the square of yarn's factor for mscale_all_dim."""
  scaling = parse(parse(position).kwargs.get('scaling', 'none')).kwargs
  if not scaling.get('mscale_all_dim'):
    return 'dot'
  stretch = 0.1 * scaling['mscale_all_dim'] * math.log(max(1, scaling['factor'])) + 1
  return f'dot(scale={stretch**2 * channels**-0.5!r})'


def write_attention(config):
  call = parse(config['model.mixer'])
  if call.name != 'latent' or call.args:
    raise ValueError(
      f"config.model.mixer={config['model.mixer']!r} is not supported by the family; use 'latent(rank=…, …)'"
    )
  return POSITION.write_fields(config) | dict(
    num_key_value_heads=config['model.heads'],
    qk_nope_head_dim=config['model.head_width'],
    qk_rope_head_dim=call.kwargs['rope_width'],
    v_head_dim=call.kwargs.get('value_width') or config['model.head_width'],
    kv_lora_rank=call.kwargs['rank'],
    q_lora_rank=call.kwargs.get('query_rank') or None,
  )


def reject_true(value):
  if value:
    raise ValueError(f'{value!r} is not supported, because published implementations differ; use False')
  return False


FALSE_ONLY = Converter(reject_true, reject_true)
ZERO_AS_NONE = Converter(lambda count: count or 0, lambda count: count)


def read_layers(hf_config):
  """The first `first_k_dense_replace` layers have no experts."""
  count, first = layer_count(hf_config, 'num_hidden_layers'), hf_config.get('first_k_dense_replace', 0)
  if not 0 <= first < count:
    raise ValueError(
      f'config.json: first_k_dense_replace={first!r} is not supported with {count} layers; '
      f'use 0 to {count - 1}'
    )
  width = hf_config.get('intermediate_size', 11008)
  fields = {'model.feed_forward_width': hf_config.get('moe_intermediate_size', 1407)}
  if not first:
    return fields
  dense = dict(
    feed_forward=GATED_ACTIVATIONS.read(hf_config.get('hidden_act', 'silu')), feed_forward_width=width
  )
  kinds = ['dense'] * first + ['sparse'] * (count - first)
  return fields | layer_pattern(kinds, dict(dense=dense, sparse=dict(feed_forward=None)))


def write_layers(config):
  kinds, widths = layer_values(config, 'feed_forward'), layer_values(config, 'feed_forward_width')
  first = next((i for i, kind in enumerate(kinds) if is_mixture(kind)), 0)
  return dict(first_k_dense_replace=first, intermediate_size=widths[0], moe_intermediate_size=widths[first])


def is_mixture(feed_forward):
  return parse(feed_forward).name == 'mixture_of_experts'


def check_routing(hf_config):
  """Rejects routing that selects among some groups of experts; with all groups it equals greedy routing."""
  method = hf_config.get('topk_method', 'greedy')
  groups, selected = (hf_config.get(name, None) for name in ('n_group', 'topk_group'))
  if method not in ('greedy', 'group_limited_greedy'):
    raise ValueError(f"config.json: topk_method={method!r} is not supported; use 'greedy'")
  if method != 'greedy' and groups not in (None, 1, selected):
    raise ValueError(
      f'config.json: topk_method={method!r} is not supported with n_group={groups!r} and '
      f"topk_group={selected!r}; use 'greedy'"
    )
  return {}


def weights(config):
  yield from llama.ends(config)
  for i, (block, section) in enumerate(zip(block_paths(config), layer_sections(config))):
    name = f'model.layers.{i}'
    yield from norm(f'{name}.input_layernorm', f'{block}/mixer_norm', bias=False)
    yield from norm(f'{name}.post_attention_layernorm', f'{block}/feed_forward_norm', bias=False)
    yield from latent(f'{name}.self_attn', f'{block}/mixer', section)
    if not is_mixture(section.feed_forward):
      yield from llama.feed_forward(f'{name}.mlp', f'{block}/feed_forward', bias=False)
      continue
    yield from mixtral.mixture(
      f'{name}.mlp',
      f'{block}/feed_forward',
      section.feed_forward,
      gate_proj='up',
      up_proj='gate',
      down_proj='down',
    )
    if parse(section.feed_forward).kwargs.get('shared'):
      yield from llama.feed_forward(f'{name}.mlp.shared_experts', f'{block}/feed_forward/shared', bias=False)


def latent(name, path, section):
  """Latent attention: the projections down to ranks, up to heads, and out."""
  kwargs, heads = parse(section.mixer).kwargs, dict(h=section.heads)
  query = 'q_proj'
  if kwargs.get('query_rank'):
    query = 'q_b_proj'
    yield Weight(f'{name}.q_a_proj.weight', f'{path}/q_down/kernel', 'r d -> d r')
    yield from norm(f'{name}.q_a_layernorm', f'{path}/q_norm', bias=False)
  yield Weight(f'{name}.{query}.weight', f'{path}/q/kernel', '(h c) d -> d h c', heads)
  yield Weight(f'{name}.kv_a_proj_with_mqa.weight', f'{path}/down/kernel', 'r d -> d r')
  yield from norm(f'{name}.kv_a_layernorm', f'{path}/norm', bias=False)
  # Of every head: keys, then values.
  widths = dict(k_up=section.head_width, v_up=kwargs.get('value_width') or section.head_width)
  parts = tuple(Part(f'{path}/{tfm_name}', width, 'c r h -> r h c') for tfm_name, width in widths.items())
  yield Weight(f'{name}.kv_b_proj.weight', parts, '(h c) r -> c r h', heads)
  yield Weight(f'{name}.o_proj.weight', f'{path}/out/kernel', 'd (h c) -> h c d', heads)


FAMILIES = (
  Family(
    model_type='deepseek_v2',
    architectures={'DeepseekV2ForCausalLM': 'vocabulary', 'DeepseekV2Model': 'features'},
    fields=fields,
    weights=weights,
    prefix='model.',
    ignored_tensors=llama.IGNORED_TENSORS,
  ),
)
