"""RoBERTa (Liu et al. 2019), and the same model for other languages: XLM-R (Conneau et al. 2020), CamemBERT
(Martin et al. 2020).
"""

from tfm.hf.families import bert
from tfm.hf.families._config_fields import ConfigConstant, CustomField, MappedField, SupportedValues
from tfm.hf.families.protocol import Family, Weight, block_paths, linear
from tfm.spec import parse


def fields(output):
  yield from bert.shared(output, transform='gelu', eos_token_id=2)
  yield CustomField(*POSITIONS)
  yield SupportedValues(position_embedding_type='absolute')
  yield MappedField('type_vocab_size', 'model.token_types', default=2)
  if output == 'classes':
    yield ConfigConstant('model.pooled_transform', 'tanh')


def read_positions(hf_config):
  """Learned positions; the table starts with pad_token_id + 1 extra rows, the last for padding."""
  pad, rows = hf_config.get('pad_token_id', 1), hf_config.get('max_position_embeddings', 512)
  if pad is None:
    raise ValueError('config.json: pad_token_id=None is not supported; positions start after it, so set it')
  length = rows - pad - 1
  return {
    'model.position': f'learned(rows={length}, before={pad + 1})',
    'data.length': length,
    'ids.pad': pad,
  }


def write_positions(config):
  kwargs = parse(config['model.position']).kwargs
  if (
    parse(config['model.position']).name != 'learned'
    or kwargs.keys() - {'rows', 'before'}
    or not kwargs.get('before')
  ):
    raise ValueError(
      f'config.model.position={config["model.position"]!r} is not supported by the family; '
      "use 'learned(rows=…, before=…)'"
    )
  rows = kwargs.get('rows') or config['data.length']
  return dict(pad_token_id=kwargs['before'] - 1, max_position_embeddings=rows + kwargs['before'])


POSITIONS = read_positions, write_positions


def weights(config, base='roberta'):
  m = config.model
  yield from bert.embeddings(f'{base}.embeddings', config)
  yield Weight(f'{base}.embeddings.position_embeddings.weight', 'position_0/table')
  for i, block in enumerate(block_paths(config)):
    yield from bert.layer(f'{base}.encoder.layer.{i}', block, m, bert.LAYER)
  yield from heads(config)


def heads(config):
  """The layers after the last hidden states."""
  m = config.model
  if m.output_bias:
    yield from bert.vocabulary(m, 'lm_head.dense', 'lm_head.layer_norm', 'lm_head')
  if config.objective.startswith('classification'):
    if m.pooled_transform:
      yield from linear('classifier.dense', 'classification/transform/dense', 'f d -> d f', True)
    yield from linear(
      'classifier.out_proj' if m.pooled_transform else 'classifier',
      'classification/classes',
      'n d -> d n',
      True,
    )


def family(model_type, classes):
  """One family; its class names start with `classes`."""
  return Family(
    model_type=model_type,
    architectures={
      f'{classes}ForMaskedLM': 'vocabulary',
      f'{classes}Model': 'features',
      f'{classes}ForSequenceClassification': 'classes',
      f'{classes}ForTokenClassification': 'token_classes',
    },
    fields=fields,
    weights=weights,
    prefix='roberta.',
    position_counting='not_padding',
    ignored_tensors=IGNORED_TENSORS,
    unused_tensors=UNUSED_TENSORS,
  )


IGNORED_TENSORS = r'(\w+\.)?embeddings\.position_ids|lm_head\.(bias|decoder\.(weight|bias))'
UNUSED_TENSORS = r'(\w+\.)?pooler\.dense\.(weight|bias)'

FAMILIES = family('roberta', 'Roberta'), family('xlm-roberta', 'XLMRoberta'), family('camembert', 'Camembert')
