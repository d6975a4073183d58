"""Which text belongs to which image: the contrastive loss of CLIP."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tfm.data.packing import protocol
from tfm.errors import require
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Objective, add_reports
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, Int
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Contrastive(Objective):
  """Σ over pairs i of ½ (-log softmax_j(l_ij)_i - log softmax_j(l_ji)_i), l_ij the scaled cosine of image i
  and text j (Radford et al. 2021, figure 3: the symmetric InfoNCE loss of van den Oord et al. 2018).

  The other texts and images of the whole batch, over all devices, are the negatives. So the loss depends on
  the batch size, and a batch has no microbatches. Equal texts of a batch are negatives of each other, too.

  In training, metrics are `accuracy`, the fraction of images for which the most similar text of the batch is
  their own, or equal to it, and `temperature`, exp(-s). An evaluation classifies each image besides:
  `zero_shot` is the fraction for which, of the texts of all classes, those of its own are the most similar
  (§3.1).

  Attributes:
    prompts: the texts of a class, with {} in place of its name; their embeddings are averaged (§3.1.4). ():
      no classification.
    shape: H, W, Q of the images, from the source.

  Raises:
    ValueError: for a prompt without {}.
  """

  document_kinds = (('image', 'text', 'label'),)
  architectures = ('image_text',)
  supports_accumulation = False

  prompts: tuple[str, ...] = ('a photo of the {}',)
  shape: tuple[Size, ...] = ()

  def __post_init__(self):
    for prompt in self.prompts:
      require(
        prompt.count('{}') == 1,
        f'prompts has {prompt!r}, in which {{}} must stand once for the name of the class',
      )

  @property
  def suggested_packing(self):
    return 'each'

  @property
  def required_fields(self):
    return frozenset({'classes'})

  def rows(self, packing, tokens, length, seed, tokenizer):
    """In evaluation, a row has the texts of all classes, too: `prompts` [C, P, T], 0 after their ends, and
    `prompt_lengths` [C, P].

    Raises:
      ValueError: also for a prompt that is longer than a row.
    """
    rows = super().rows(packing, tokens, length, seed, tokenizer)
    if seed is not None or not self.prompts:
      return rows

    def make(text):
      ids = tokenizer.encode(text)
      require(
        len(ids) + 2 <= length,
        f'config.data.length={length} is less than the {len(ids) + 2} tokens of the prompt {text!r}; use a '
        'greater length, or a shorter prompt',
      )
      return protocol.text_row(tokenizer.bos_id, [*ids, tokenizer.eos_id], length)

    made = [[make(prompt.replace('{}', name)) for prompt in self.prompts] for name in tokens.names]
    fields = dict(
      prompts=np.array([[row['inputs'] for row in group] for group in made]),
      prompt_lengths=np.array([[row['segments'].sum() for row in group] for group in made], np.int32),
    )
    return protocol.MappedRows(rows, lambda row, index: row | fields)

  def padding_row(self, length):
    row = {field: np.zeros(length, np.int32) for field in ('inputs', 'positions', 'segments')}
    return row | dict(image=np.zeros(self.shape, np.float32), classes=np.int32(-1))

  def summarize(self, total, size):
    """Returns the means over pairs: `loss` in nats, `accuracy`, `temperature`, and `zero_shot` if there are
    prompts; and `tokens`, the number of pairs.
    """
    del size
    count = max(total['tokens'], 1)
    means = {name: value / count for name, value in total.items() if name != 'tokens'}
    return means | dict(tokens=total['tokens'])

  def __call__(self, model, params, batch, key):
    context = Context(batch['positions'], batch['segments'], train=key is not None, layout=self.layout)

    def embed(model, images, tokens):
      return (
        model.embed_texts(tokens, context),
        model.embed_images(images, context.train),
        model.clipped_scale(),
      )

    (texts, images, scale), reports = self.apply_model(
      model, params, key, embed, batch['image'], batch['inputs']
    )
    is_pair = (batch['segments'] > 0).any(1)
    logits = shard(scale * jnp.einsum('ie,je->ij', images, texts), 'batch', None)
    loss, nearest = sum_contrastive_loss(logits, is_pair)
    equal = (jnp.take(batch['inputs'], nearest, axis=0) == batch['inputs']).all(1) & is_pair
    pairs = is_pair.sum().astype(jnp.float32)
    sums = dict(loss=loss, accuracy=equal.sum(), temperature=pairs / scale, tokens=pairs)
    if 'prompts' in batch:
      # All rows have the same; the first row of a batch is never padding.
      classes = self.embed_classes(model, params, batch['prompts'][0], batch['prompt_lengths'][0])
      predicted = jnp.einsum('ie,ce->ic', images, classes).argmax(1)
      sums['zero_shot'] = ((predicted == batch['classes']) & is_pair).sum()
    return add_reports(loss, {name: x.astype(jnp.float32) for name, x in sums.items()}, reports)

  def embed_classes(
    self, model, params, prompts: Int[Array, 'C P T'], lengths: Int[Array, 'C P']
  ) -> Float[Array, 'C E']:
    """The mean of the embeddings of each class's texts, of length 1."""
    C, P, T = prompts.shape
    positions = jnp.broadcast_to(jnp.arange(T), (C * P, T))
    segments = (positions < lengths.reshape(-1, 1)).astype(jnp.int32)
    context = Context(positions, segments, jnp.zeros_like(segments), layout='contiguous')
    embedded, _ = self.apply_model(model, params, None, 'embed_texts', prompts.reshape(C * P, T), context)
    mean = embedded.reshape(C, P, -1).mean(1)
    return mean / jnp.linalg.norm(mean, axis=1, keepdims=True)


def sum_contrastive_loss(
  logits: Float[Array, 'B B'], is_pair: Bool[Array, 'B']
) -> tuple[Float[Array, ''], Int[Array, 'B']]:
  """Returns the loss summed over the pairs, and for each image the text that is most similar; what is no pair
  is neither counted nor compared with.
  """
  lowest = jnp.finfo(logits.dtype).min  # not -inf, so that a gradient of 0 is no NaN
  from_images = jnp.where(is_pair[None, :], logits, lowest)
  from_texts = jnp.where(is_pair[:, None], logits, lowest)
  own = jnp.einsum('ii->i', logits)  # by a mask: `jnp.diagonal` gathers, from all devices
  normalizers = jax.nn.logsumexp(from_images, 1) + jax.nn.logsumexp(from_texts, 0)
  return jnp.where(is_pair, normalizers / 2 - own, 0).sum(), from_images.argmax(1)
