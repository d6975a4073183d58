"""Longformer (Beltagy et al. 2020)."""

from ml_collections import ConfigDict

from tfm.hf.families import bert, roberta
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  SupportedValues,
)
from tfm.hf.families.protocol import Family, Weight, block_paths, linear
from tfm.spec import parse


def fields(output):
  # A text's class is read from the first token, which is then global; otherwise only the context sets global
  # tokens.
  global_tokens = int(output == 'classes')
  yield from bert.shared(output, transform='gelu', eos_token_id=2)
  yield from (
    CustomField(*roberta.POSITIONS),
    CustomField(lambda hf_config: read_windows(hf_config, global_tokens), write_windows),
    MappedField('type_vocab_size', 'model.token_types', default=2),
    ConfigConstant('model.mixer', f'longformer({global_tokens})'),
    SupportedValues(attention_mode='longformer', ignore_attention_mask=False),
    IgnoredFields('onnx_export'),
  )
  if output == 'classes':
    yield ConfigConstant('model.pooled_transform', 'tanh')


def read_windows(hf_config, global_tokens):
  """The masks; the published window counts both sides, and is one number or one for each layer."""
  setting, layers = hf_config.get('attention_window', 512), hf_config.get('num_hidden_layers', 12)
  windows = list(setting) if isinstance(setting, (list, tuple)) else [setting] * layers
  if len(windows) != layers or any(type(size) is not int or size < 2 or size % 2 for size in windows):
    raise ValueError(
      f'config.json: attention_window={setting!r} is not supported; use an even number, or one for each of '
      f'num_hidden_layers={layers}'
    )

  def mask(window):
    return f'longformer({window // 2}, {global_tokens})'

  if len({*windows}) == 1:
    return {'model.mask': mask(windows[0])}
  period = next(n for n in range(1, layers + 1) if all(windows[i] == windows[i % n] for i in range(layers)))
  return {'model.pattern': tuple(f'window_{window}' for window in windows[:period])} | {
    f'model.blocks.window_{window}.mask': mask(window) for window in dict.fromkeys(windows)
  }


def write_windows(config):
  pattern = config['model.pattern'] or (None,)
  paths = ['model.mask' if name is None else f'model.blocks.{name}.mask' for name in pattern]
  windows = []
  for path in paths:
    call = parse(config[path]) if config[path].isidentifier() or config[path].endswith(')') else None
    if call is None or call.name != 'longformer' or len(call.args) != 2:
      raise ValueError(
        f"config.{path}={config[path]!r} is not supported by the family; use 'longformer(256, 0)'"
      )
    windows.append(2 * call.args[0])
  return dict(attention_window=[windows[i % len(windows)] for i in range(config['model.layers'])])


def use_context_globals(config: ConfigDict) -> ConfigDict:
  """The config of the same model with the global tokens of the context instead of the first ones."""
  config = config.copy_and_resolve_references()
  for part in (config.model, *config.model.blocks.values()):
    part.mixer = 'longformer(0)'
    if parse(part.mask).name == 'longformer':
      part.mask = f'longformer({parse(part.mask).args[0]}, 0)'
  return config


def weights(config):
  base, heads = 'longformer', dict(h=config.model.heads)
  yield from bert.embeddings(f'{base}.embeddings', config)
  yield Weight(f'{base}.embeddings.position_embeddings.weight', 'position_0/table')
  for i, block in enumerate(block_paths(config)):
    name = f'{base}.encoder.layer.{i}'
    yield from bert.layer(name, block, config.model, bert.LAYER)
    for letter in 'qkv':
      yield from linear(
        f'{name}.{bert.LAYER[letter]}_global',
        f'{block}/mixer/{letter}_global',
        '(h c) d -> d h c',
        True,
        sizes=heads,
      )
  yield from roberta.heads(config)


FAMILIES = (
  Family(
    model_type='longformer',
    architectures={
      'LongformerForMaskedLM': 'vocabulary',
      'LongformerModel': 'features',
      'LongformerForSequenceClassification': 'classes',
      'LongformerForTokenClassification': 'token_classes',
    },
    fields=fields,
    weights=weights,
    prefix='longformer.',
    position_counting='not_padding',
    ignored_tensors=roberta.IGNORED_TENSORS,
    unused_tensors=roberta.UNUSED_TENSORS,
  ),
)
