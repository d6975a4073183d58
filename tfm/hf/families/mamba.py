"""Mamba (Gu & Dao 2023)."""

from collections.abc import Iterable
from typing import Any

from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SupportedValues,
)
from tfm.hf.families._field_converters import format_spec, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.mixers.mamba import Mamba
from tfm.mixers.protocol import Mixer
from tfm.spec import bind, parse


def fields(output):
  yield from shared(layers=32, width=768, tied=True, vocab=50280, eos=0, pad=0)
  yield from (
    ConfigConstant('model.heads', 1),  # unused; 1 divides every width
    CustomField(read_mixer, write_mixer),
    SupportedValues(ssm_cfg={}),
    IgnoredFields(
      'use_mambapy', 'use_associative_scan', 'd_inner', 'fused_add_norm', 'pad_vocab_size_multiple'
    ),
  )


def shared(layers, width, tied, vocab, eos, pad):
  """The fields that both generations share, with their defaults."""
  yield from (
    MappedField('num_hidden_layers', 'model.layers', default=layers, aliases=('n_layer',)),
    MappedField('hidden_size', 'model.width', default=width, aliases=('d_model',)),
    MappedField('layer_norm_epsilon', 'model.norm', spec_argument('rmsnorm', 'epsilon', 1e-6), default=1e-5),
    MappedField('use_bias', 'model.bias', default=False),
    MappedField('tie_word_embeddings', 'model.tie_embeddings', default=tied),
    MappedField('vocab_size', 'vocab', default=vocab),
    MappedField('eos_token_id', 'ids.eos', default=eos),
    MappedField('pad_token_id', 'ids.pad', default=pad),
    ConfigConstant('model.position', 'none'),
    ConfigConstant('model.feed_forward', 'none'),
    SupportedValues(hidden_act='silu', rms_norm=True),
    # Initialization, and values that follow from other fields.
    IgnoredFields(
      'intermediate_size',
      'residual_in_fp32',
      'rescale_prenorm_residual',
      'time_step_min',
      'time_step_max',
      'time_step_floor',
      'time_step_scale',
      'time_step_init_scheme',
    ),
  )


def read_mixer(hf_config):
  width, rank = (
    hf_config.get('hidden_size', hf_config.get('d_model', 768)),
    hf_config.get('time_step_rank', 'auto'),
  )
  kwargs = dict(
    state=hf_config.get('state_size', 16),
    expand=hf_config.get('expand', 2),
    taps=hf_config.get('conv_kernel', 4),
    rank=None if rank in ('auto', -(-width // 16)) else rank,
    convolution_bias=hf_config.get('use_conv_bias', True),
  )
  return {'model.mixer': format_spec('mamba', kwargs)}


def write_mixer(config):
  kwargs = parse_arguments(
    config['model.mixer'], Mamba, ('state', 'expand', 'taps', 'rank', 'convolution_bias')
  )
  return dict(
    state_size=kwargs['state'],
    expand=kwargs['expand'],
    conv_kernel=kwargs['taps'],
    time_step_rank='auto' if kwargs['rank'] is None else kwargs['rank'],
    use_conv_bias=kwargs['convolution_bias'],
  )


def parse_arguments(text: str, kind: type, names: Iterable[str]) -> dict[str, Any]:
  """The arguments of the spec of a mixer class, defaults included."""
  call = parse(text)
  if call.name != kind.__name__.lower():
    raise ValueError(
      f'config.model.mixer={text!r} is not supported by the family; use {kind.__name__.lower()!r}'
    )
  bound = bind(call, kind, text, dict.fromkeys(Mixer.__dataclass_fields__)).keywords
  return {name: bound.get(name, kind.__dataclass_fields__[name].default) for name in names}


def weights(config):
  m = config.model
  bias = parse_arguments(m.mixer, Mamba, ('convolution_bias',))['convolution_bias']
  yield from ends(m)
  for i, block in enumerate(block_paths(config)):
    name, path = f'backbone.layers.{i}.mixer', f'{block}/mixer'
    yield from norm(f'backbone.layers.{i}.norm', f'{block}/mixer_norm', bias=False)
    yield Weight(
      f'{name}.in_proj.weight', (f'{path}/x/kernel', f'{path}/z/kernel'), '(n i) d -> n d i', dict(n=2)
    )
    if m.bias:
      yield Weight(f'{name}.in_proj.bias', (f'{path}/x/bias', f'{path}/z/bias'), '(n i) -> n i', dict(n=2))
    yield Weight(f'{name}.conv1d.weight', f'{path}/convolution/weight', 'i 1 t -> t i')
    if bias:
      yield Weight(f'{name}.conv1d.bias', f'{path}/convolution/bias')
    yield Weight(f'{name}.x_proj.weight', f'{path}/x_proj', 'r i -> i r')
    yield Weight(f'{name}.dt_proj.weight', f'{path}/dt_proj', 'i r -> r i')
    yield Weight(f'{name}.dt_proj.bias', f'{path}/dt_bias')
    for part in ('A_log', 'D'):
      yield Weight(f'{name}.{part}', f'{path}/{part}')
    yield from linear(f'{name}.out_proj', f'{path}/out', 'd i -> i d', m.bias)


def ends(model):
  """The embedding, the last norm and the output."""
  yield Weight('backbone.embeddings.weight', 'embedding/table')
  yield from norm('backbone.norm_f', 'norm', bias=False)
  if not model.tie_embeddings:
    yield Weight('lm_head.weight', 'output/kernel', 'v d -> d v')


FAMILIES = (
  Family(
    model_type='mamba',
    architectures={'MambaForCausalLM': 'vocabulary', 'MambaModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='backbone.',
    ignored_tensors=r'lm_head\.weight',
    unread_config_paths=('model.heads', 'model.kv_heads', 'model.head_width'),
  ),
)
