"""Mamba-2 (Dao & Gu 2024)."""

import math

from tfm.hf.families import mamba
from tfm.hf.families._config_fields import CustomField, IgnoredFields
from tfm.hf.families._field_converters import format_spec
from tfm.hf.families.mamba import parse_arguments
from tfm.hf.families.protocol import Family, Part, Weight, block_paths, norm
from tfm.mixers.mamba2 import Mamba2


NAMES = 'state', 'expand', 'taps', 'chunk', 'epsilon', 'convolution_bias'


def fields(output):
  yield from mamba.shared(layers=64, width=4096, tied=False, vocab=32768, eos=2, pad=1)
  yield CustomField(read_mixer, write_mixer)
  yield CustomField(check_time_step_limit, lambda config: {})
  # The published class multiplies by the gate before its norm and ignores this field.
  yield IgnoredFields('time_step_rank', 'norm_before_gate')


def read_mixer(hf_config):
  """Config heads times `expand` are the published heads, if the groups divide them; otherwise expand=1."""
  heads, channels, groups, expand = (
    hf_config.get(*field) for field in (('num_heads', 128), ('head_dim', 64), ('n_groups', 8), ('expand', 2))
  )
  width = hf_config.get('hidden_size', hf_config.get('d_model', 4096))
  if heads * channels != expand * width:
    raise ValueError(
      f'config.json: num_heads={heads} is not supported with head_dim={channels}, expand={expand} and '
      f'hidden_size={width}; use {expand * width / channels:g}'
    )
  multiple = expand if heads % (expand * groups) == 0 else 1
  kwargs = dict(
    state=hf_config.get('state_size', 128),
    expand=multiple,
    taps=hf_config.get('conv_kernel', 4),
    chunk=hf_config.get('chunk_size', 256),
    epsilon=hf_config.get('layer_norm_epsilon', 1e-5),
    convolution_bias=hf_config.get('use_conv_bias', True),
  )
  return {
    'model.heads': heads // multiple,
    'model.kv_heads': groups,
    'model.head_width': channels,
    'model.mixer': format_spec('mamba2', kwargs),
  }


def write_mixer(config):
  kwargs = parse_arguments(config['model.mixer'], Mamba2, NAMES)
  heads, channels, width = (
    kwargs['expand'] * config['model.heads'],
    config['model.head_width'],
    config['model.width'],
  )
  if heads * channels % width:
    raise ValueError(
      f'config.model.head_width={channels} is not supported by the family: {heads} heads × '
      f'{channels} channels '
      f'are not a multiple of config.model.width={width}; use a head_width for which they are'
    )
  return dict(
    num_heads=heads,
    head_dim=channels,
    n_groups=config['model.kv_heads'],
    expand=heads * channels // width,
    state_size=kwargs['state'],
    conv_kernel=kwargs['taps'],
    chunk_size=kwargs['chunk'],
    use_conv_bias=kwargs['convolution_bias'],
  )


def check_time_step_limit(hf_config):
  """Rejects limits on time steps."""
  low, high = hf_config.get('time_step_limit', None) or (0.0, math.inf)
  high = float(high['__float__']) if isinstance(high, dict) else high
  if low > 0 or high < math.inf:
    raise ValueError(f'config.json: time_step_limit={[low, high]!r} is not supported; use [0.0, inf]')
  return {}


def weights(config):
  m = config.model
  kwargs = parse_arguments(m.mixer, Mamba2, NAMES)
  heads, channels, groups, state = kwargs['expand'] * m.heads, m.head_width, m.kv_heads, kwargs['state']
  # The parts of the fused projection, in order: name → (rows, flat axes, axes, sizes).
  inner, shared = (
    (heads * channels, '(h c)', 'h c', dict(h=heads)),
    (groups * state, '(k n)', 'k n', dict(k=groups)),
  )
  parts = dict(z=inner, x=inner, B=shared, C=shared, dt=(heads, 'h', 'h', {}))
  convolved = {name: parts[name] for name in 'xBC'}
  yield from mamba.ends(m)
  for i, block in enumerate(block_paths(config)):
    name, path = f'backbone.layers.{i}.mixer', f'{block}/mixer'
    yield from norm(f'backbone.layers.{i}.norm', f'{block}/mixer_norm', bias=False)
    yield Weight(
      f'{name}.in_proj.weight',
      tuple(
        Part(f'{path}/{part}/kernel', rows, f'{flat} d -> d {axes}', sizes)
        for part, (rows, flat, axes, sizes) in parts.items()
      ),
    )
    if m.bias:
      yield Weight(
        f'{name}.in_proj.bias',
        tuple(
          Part(f'{path}/{part}/bias', rows, f'{flat} -> {axes}', sizes)
          for part, (rows, flat, axes, sizes) in parts.items()
        ),
      )
    yield Weight(
      f'{name}.conv1d.weight',
      tuple(
        Part(f'{path}/{part}_convolution/weight', rows, f'{flat} 1 t -> t {axes}', sizes)
        for part, (rows, flat, axes, sizes) in convolved.items()
      ),
    )
    if kwargs['convolution_bias']:
      yield Weight(
        f'{name}.conv1d.bias',
        tuple(
          Part(f'{path}/{part}_convolution/bias', rows, f'{flat} -> {axes}', sizes)
          for part, (rows, flat, axes, sizes) in convolved.items()
        ),
      )
    for part in ('dt_bias', 'A_log', 'D'):
      yield Weight(f'{name}.{part}', f'{path}/{part}')
    yield Weight(f'{name}.norm.weight', f'{path}/scale', '(h c) -> h c', dict(h=heads))
    yield Weight(f'{name}.out_proj.weight', f'{path}/out/kernel', 'd (h c) -> h c d', dict(h=heads))
    if m.bias:
      yield Weight(f'{name}.out_proj.bias', f'{path}/out/bias')


FAMILIES = (
  Family(
    model_type='mamba2',
    architectures={'Mamba2ForCausalLM': 'vocabulary', 'Mamba2Model': 'features'},
    fields=fields,
    weights=weights,
    prefix='backbone.',
    ignored_tensors=r'lm_head\.weight',
  ),
)
