"""DeiT, with a token and a head for distillation (Touvron et al. 2021, §4)."""

from tfm.hf.families import vit
from tfm.hf.families.fields import CustomField
from tfm.hf.families.protocol import Family, Weight, linear


def fields(output):
  yield from vit.fields(output, tokens=2)
  if output == 'classes':
    yield CustomField(heads, heads_written)


# What a class of the published implementation tells classes from.
POOLINGS = {'DeiTForImageClassification': 'first', 'DeiTForImageClassificationWithTeacher': 'first_two'}


def heads(hf_config):
  [name] = hf_config.get('architectures', None) or ['DeiTForImageClassification']
  return {'model.pooling': POOLINGS[name]}


def heads_written(config):
  [*names] = [name for name, pooling in POOLINGS.items() if pooling == config['model.pooling']]
  if not names:
    raise ValueError(
      f'config.model.pooling={config["model.pooling"]!r} has no class; {" and ".join(POOLINGS.values())} have'
    )
  return dict(architectures=names)


def weights(config):
  yield Weight(
    ('deit.embeddings.cls_token', 'deit.embeddings.distillation_token'), 'class_token/table', 'n 1 1 d -> n d'
  )
  yield from vit.trunk('deit', config)
  if config.objective.startswith('classification'):
    two = config.model.pooling == 'first_two'
    yield from linear('cls_classifier' if two else 'classifier', 'classification/classes', 'n d -> d n', True)
    if two:
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
