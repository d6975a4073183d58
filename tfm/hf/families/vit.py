"""The Vision Transformer (Dosovitskiy et al. 2021), and DeiT without distillation (Touvron et al. 2021)."""

import functools

from tfm.hf.families import bert
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  class_count,
)
from tfm.hf.families._field_converters import ACTIVATIONS, Converter, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths, linear, norm
from tfm.spec import parse


def fields(output, tokens=1):
  """`tokens`: number of learned tokens before the patches."""
  yield from (
    ConfigConstant('model.architecture', 'encoder'),
    ConfigConstant('model.bias', True),
    ConfigConstant('model.vocab_multiple', 128),  # there is no vocabulary
    ConfigConstant('model.class_tokens', tokens),
    CustomField(functools.partial(read_images, tokens=tokens), write_images),
    MappedField('num_hidden_layers', 'model.layers', default=12),
    MappedField('hidden_size', 'model.width', default=768),
    MappedField('num_attention_heads', 'model.heads', default=12),
    MappedField('intermediate_size', 'model.feed_forward_width', default=3072),
    MappedField('hidden_act', 'model.feed_forward', ACTIVATIONS, default='gelu'),
    MappedField('qkv_bias', 'model.mixer', BIASES, default=True),
    MappedField('layer_norm_eps', 'model.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-12),
    MappedField('hidden_dropout_prob', 'model.dropout.embedding', default=0.0),
    MappedField('hidden_dropout_prob', 'model.dropout.residual', default=0.0),
    MappedField('attention_probs_dropout_prob', 'model.dropout.attention', default=0.0),
    IgnoredFields('encoder_stride', 'pooler_output_size', 'pooler_act'),  # of unused heads
    *class_count(output),
  )


# Biases of queries, keys and values; the output projection always has one.
BIASES = Converter(
  lambda value: f'softmax(biases={"qkvo" if value else "o"!r})',
  lambda text: {"softmax(biases='qkvo')": True, "softmax(biases='o')": False}[text],
)


def read_images(hf_config, tokens, default_patch=16):
  """The shape of the images, and the patches."""
  size, patch, channels = (
    hf_config.get('image_size', 224),
    hf_config.get('patch_size', default_patch),
    hf_config.get('num_channels', 3),
  )
  height, width = size if isinstance(size, (list, tuple)) else (size, size)
  sides = {*patch} if isinstance(patch, (list, tuple)) else {patch}
  if len(sides) > 1:
    raise ValueError(f'config.json: patch_size={patch!r} is not supported; use square patches')
  [side] = sides
  length = (height // side) * (width // side) + tokens
  return {
    'data.source': f'shape({height}, {width}, {channels})',
    'model.patch': side,
    'data.length': length,
    'model.position': f'learned(rows={length})',
  }


def write_images(config):
  call = parse(config['data.source'])
  if call.name != 'shape' or len(call.args) != 3:
    raise ValueError(
      f'config.data.source={config["data.source"]!r} is not supported by the family; '
      "use 'shape(height, width, channels)'"
    )
  height, width, channels = call.args
  return dict(
    image_size=height if height == width else [height, width],
    patch_size=config['model.patch'],
    num_channels=channels,
  )


def weights(config):
  yield Weight('vit.embeddings.cls_token', 'class_token/table', '1 1 d -> 1 d')
  yield from trunk('vit', config)
  if config.objective.startswith('classification'):
    yield from linear('classifier', 'classification/classes', 'n d -> d n', True)


def trunk(name, config):
  """Everything between the learned tokens and the heads."""
  yield Weight(f'{name}.embeddings.position_embeddings', 'position_0/table', '1 t d -> t d')
  patch = dict(p=config.model.patch, r=config.model.patch)
  yield Weight(
    f'{name}.embeddings.patch_embeddings.projection.weight', 'patches/kernel', 'd c p r -> (p r c) d', patch
  )
  yield Weight(f'{name}.embeddings.patch_embeddings.projection.bias', 'patches/bias')
  for i, block in enumerate(block_paths(config)):
    yield from bert.layer(f'{name}.encoder.layer.{i}', block, config.model, LAYER)
  yield from norm(f'{name}.layernorm', 'norm', bias=True)


LAYER = dict(
  q='attention.attention.query',
  k='attention.attention.key',
  v='attention.attention.value',
  out='attention.output.dense',
  mixer_norm='layernorm_before',
  up='intermediate.dense',
  down='output.dense',
  feed_forward_norm='layernorm_after',
)

FAMILIES = (
  Family(
    model_type='vit',
    architectures={'ViTForImageClassification': 'classes', 'ViTModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='vit.',
    unused_tensors=r'(vit\.)?(pooler\.dense\.(weight|bias)|embeddings\.mask_token)',
  ),
)
