"""Images: the patches of a model, and what images alone do not have."""

from typing import TYPE_CHECKING, Any

from tfm.config.schema import default_config
from tfm.errors import require
from tfm.layers.classification_head import CLASS_TOKEN_COUNT


if TYPE_CHECKING:
  from tfm.config.assemble.experiment import Experiment


# Fields of the output layers over the vocabulary.
OUTPUT = 'output_transform', 'output_bias', 'output_soft_cap'
# Fields of models with a vocabulary only.
TOKENS = (
  'tie_embeddings',
  'embedding_width',
  'scale_embeddings',
  'embedding_initializer',
  *OUTPUT,
  'token_types',
  'vocab_multiple',
)


def build_patches(experiment: 'Experiment') -> dict[str, Any]:
  """Image shape and patch size.

  Raises:
    ValueError: for a patch without images or images without one, one that does not divide them, class tokens
      that the model does not read, and fewer than the pooling reads.
  """
  config = experiment.config
  m, shape = config.model, experiment.source.image_shape
  require(
    bool(shape),
    f'config.model.patch={m.patch} needs images, and config.data.source={config.data.source!r} has '
    'text; leave it at 0',
  )
  H, W, _ = shape
  fit = [p for p in range(1, min(H, W) + 1) if H % p == W % p == 0]
  require(
    m.patch in fit,
    f'config.model.patch={m.patch} does not divide the {H} × {W} pixels of config.data.source='
    f'{config.data.source!r} into patches; use one of {", ".join(map(str, fit))}',
  )
  denoises = m.architecture == 'diffusion'
  require(
    not (denoises and m.class_tokens),
    f'config.model.class_tokens={m.class_tokens} needs an encoder, and '
    f'config.model.architecture={m.architecture!r} ignores them; leave it out',
  )
  require(
    denoises or m.class_tokens >= CLASS_TOKEN_COUNT[m.pooling],
    f'config.model.class_tokens={m.class_tokens} is less than the {CLASS_TOKEN_COUNT[m.pooling]} that '
    f'config.model.pooling={m.pooling!r} reads; leave it out',
  )
  return dict(shape=shape, patch=m.patch)


def count_patches(patches: dict[str, Any]) -> int:
  """The number of patches of an image, from `build_patches`."""
  H, W, _ = patches['shape']
  return (H // patches['patch']) * (W // patches['patch'])


def validate_images(experiment: 'Experiment') -> None:
  """Raises ValueError for a model of images alone with another data.length than their tokens, and for fields
  of tokens of text, which would be ignored.
  """
  config, patches = experiment.config, build_patches(experiment)
  m, length, count = config.model, config.data.length, count_patches(patches)
  classed = m.class_tokens
  described = {0: '', 1: ' and the class token'}.get(classed, f' and {classed} class tokens')
  require(
    length == count + classed,
    f'config.data.length={length} is not the {count} patches of {m.patch} × {m.patch} pixels of '
    f'config.data.source={config.data.source!r}{described}; set it to {count + classed}',
  )
  for field in TOKENS:
    default = m.width if field == 'embedding_width' else default_config().model[field]
    require(
      m[field] == default,
      f'config.model.{field}={m[field]!r} needs a vocabulary, which images do not have; '
      f'leave it at {default!r}',
    )
