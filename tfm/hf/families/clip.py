"""CLIP (Radford et al. 2021)."""

from tfm.hf.families import bert, vit
from tfm.hf.families._config_fields import (
  ConfigConstant,
  CustomField,
  IgnoredFields,
  MappedField,
  NestedFields,
  SupportedValues,
  learned_position,
)
from tfm.hf.families._field_converters import ACTIVATIONS, Converter, spec_argument
from tfm.hf.families.protocol import Family, Weight, block_paths, norm
from tfm.spec import parse


def fields(output):
  text, vision = dict(width=512, layers=12, heads=8), dict(width=768, layers=12, heads=12)
  yield from (
    ConfigConstant('model.architecture', 'image_text'),
    ConfigConstant('model.bias', True),
    ConfigConstant('model.class_tokens', 1),
    ConfigConstant('model.encoder.embedding_norm', True),
    NestedFields(
      'text_config',
      (
        *tower('model', **text),
        learned_position('max_position_embeddings', 77),
        MappedField('vocab_size', 'vocab', default=49_408),
        MappedField('attention_dropout', 'model.dropout.attention', default=0.0),
        MappedField('eos_token_id', 'ids.eos', END, default=49_407),
        MappedField('pad_token_id', 'ids.pad', default=1),
      ),
    ),
    NestedFields(
      'vision_config',
      (
        *tower('model.encoder', **vision),
        CustomField(read_images, write_images),
        IgnoredFields('attention_dropout', 'eos_token_id', 'pad_token_id'),
      ),
    ),
    CustomField(read_projection, lambda config: dict(projection_dim=config['model.width'])),
    # Older files may have a second form of the two objects.
    SupportedValues(text_config_dict=None, vision_config_dict=None),
    IgnoredFields('logit_scale_init_value', 'initializer_factor'),
  )


def read_end(value):
  """The one token that ends a text."""
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f'{value!r} is not supported; use the id of the token that ends a text')
  return value


END = Converter(read_end, lambda value: value)


def tower(section, width, layers, heads):
  """The fields that both encoders have, with their defaults."""
  return (
    MappedField('num_hidden_layers', f'{section}.layers', default=layers),
    MappedField('hidden_size', f'{section}.width', default=width),
    MappedField('num_attention_heads', f'{section}.heads', default=heads),
    MappedField('intermediate_size', f'{section}.feed_forward_width', default=4 * width),
    MappedField('hidden_act', f'{section}.feed_forward', ACTIVATIONS, default='quick_gelu'),
    MappedField(
      'layer_norm_eps', f'{section}.norm', spec_argument('layernorm', 'epsilon', 1e-5), default=1e-5
    ),
    IgnoredFields(
      'projection_dim',  # that of the whole counts
      'initializer_factor',
      'dropout',
      'add_cross_attention',
      'cross_attention_hidden_size',
      'decoder_start_token_id',
      'is_decoder',
      'tf_legacy_loss',
      'tie_word_embeddings',
    ),
  )


def read_images(hf_config):
  """The shape of the images, and the patches."""
  read = vit.read_images(hf_config, tokens=1, default_patch=32)
  return {
    'data.source': f'captions({read["data.source"]!r})',
    'model.patch': read['model.patch'],
    'model.encoder.position': read['model.position'],
  }


def write_images(config):
  call = parse(config['data.source'])
  images = call.args[0] if call.args else call.kwargs.get('source', 'digits')
  return vit.write_images({'data.source': images, 'model.patch': config['model.patch']})


def read_projection(hf_config):
  """The width of the embeddings, which is that of the text."""
  width = (hf_config.get('text_config', None) or {}).get('hidden_size', 512)
  if (size := hf_config.get('projection_dim', 512)) != width:
    raise ValueError(
      f'config.json: projection_dim={size} is not supported; only {width}, the hidden_size of text_config, is'
    )
  return {}


def weights(config):
  m = config.model
  yield Weight('logit_scale', 'logit_scale')
  yield Weight('text_model.embeddings.token_embedding.weight', 'embedding/table')
  yield Weight('text_model.embeddings.position_embedding.weight', 'position_0/table')
  yield from layers('text_model', 'model', config, m)
  yield from norm('text_model.final_layer_norm', 'norm', bias=True)
  yield Weight('text_projection.weight', 'text_projection/kernel', 'e d -> d e')
  patch = dict(p=m.patch, r=m.patch)
  yield Weight('vision_model.embeddings.class_embedding', 'encoder/class_token/table', 'd -> 1 d')
  yield Weight(
    'vision_model.embeddings.patch_embedding.weight', 'encoder/patches/kernel', 'd c p r -> (p r c) d', patch
  )
  yield Weight('vision_model.embeddings.position_embedding.weight', 'encoder/position_0/table')
  yield from norm('vision_model.pre_layrnorm', 'encoder/embedding_norm', bias=True)
  yield from layers('vision_model', 'model.encoder', config, m.encoder)
  yield from norm('vision_model.post_layernorm', 'encoder/norm', bias=True)
  yield Weight('visual_projection.weight', 'image_projection/kernel', 'e d -> d e')


def layers(name, where, config, section):
  """The blocks of one of the encoders."""
  for i, block in enumerate(block_paths(config, where)):
    yield from bert.layer(f'{name}.encoder.layers.{i}', block, section, LAYER)


LAYER = dict(
  q='self_attn.q_proj',
  k='self_attn.k_proj',
  v='self_attn.v_proj',
  out='self_attn.out_proj',
  mixer_norm='layer_norm1',
  up='mlp.fc1',
  down='mlp.fc2',
  feed_forward_norm='layer_norm2',
)

FAMILIES = (
  Family(
    model_type='clip',
    architectures={'CLIPModel': 'pairs'},
    fields=fields,
    weights=weights,
    ignored_tensors=r'(text|vision)_model\.embeddings\.position_ids',
    position_counting='all',
  ),
)
