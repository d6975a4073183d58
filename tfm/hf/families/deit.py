"""DeiT with a distillation token and a distillation head (Touvron et al. 2021, §4)."""

from tfm.hf.families import vit
from tfm.hf.families._config_fields import CustomField
from tfm.hf.families.protocol import Family, Weight, linear


def fields(output):
  yield from vit.fields(output, tokens=2)
  if output == 'classes':
    yield CustomField(read_pooling, write_pooling)


# Class of the published implementation → the hidden states that its classifier reads.
POOLINGS = {'DeiTForImageClassification': 'first', 'DeiTForImageClassificationWithTeacher': 'first_two'}


def read_pooling(hf_config):
  [name] = hf_config.get('architectures', None) or ['DeiTForImageClassification']
  return {'model.pooling': POOLINGS[name]}


def write_pooling(config):
  [*names] = [name for name, pooling in POOLINGS.items() if pooling == config['model.pooling']]
  if not names:
    raise ValueError(
      f'config.model.pooling={config["model.pooling"]!r} is not supported by the family; use one '
      f'of {", ".join(POOLINGS.values())}'
    )
  return dict(architectures=names)


def weights(config):
  yield Weight(
    ('deit.embeddings.cls_token', 'deit.embeddings.distillation_token'), 'class_token/table', 'n 1 1 d -> n d'
  )
  yield from vit.trunk('deit', config)
  if config.objective.startswith('classification'):
    has_two_heads = config.model.pooling == 'first_two'
    yield from linear(
      'cls_classifier' if has_two_heads else 'classifier', 'classification/classes', 'n d -> d n', True
    )
    if has_two_heads:
      yield from linear('distillation_classifier', 'classification/classes_1', 'n d -> d n', True)


FAMILIES = (
  Family(
    model_type='deit',
    architectures=dict.fromkeys(POOLINGS, 'classes') | {'DeiTModel': 'features'},
    fields=fields,
    weights=weights,
    prefix='deit.',
    unused_tensors=r'(deit\.)?(pooler\.dense\.(weight|bias)|embeddings\.mask_token)',
  ),
)
