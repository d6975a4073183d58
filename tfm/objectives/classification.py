"""The class of a text or of an image, or of each word of a text."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval

from tfm.data.packing.protocol import Documents
from tfm.errors import require
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Objective, add_reports
from tfm.spec import MAX_SIZE, Rate, Size


MAX_NAMES_SHOWN = 10  # in an error
# The sum of an evaluation that holds the number of items by [true class, predicted class].
CONFUSION_MATRIX = 'confusion_matrix'


@dataclasses.dataclass(frozen=True)
class Classification(Objective):
  """Σ over rows of -log p(class | row) (Devlin et al. 2019, §4.1; Dosovitskiy et al. 2021, §3.1).

  Attributes:
    classes: the number of classes; those of the data are numbered in the order of their names.
    words: whether each word of a text has a class, predicted at its first token (Devlin et al. 2019, §5.3),
      instead of the text.
    label_smoothing: ε, the probability that is distributed uniformly over the classes (Szegedy et al. 2016,
      §7).
    shape: H, W, Q of the images, from the source; () for texts.

  Raises:
    ValueError: for fewer than two classes, or ε outside [0, 1).
  """

  architectures = ('encoder',)

  classes: Annotated[int, Interval(ge=2, le=MAX_SIZE)]
  words: bool = False
  label_smoothing: Rate = 0.0
  shape: tuple[Size, ...] = ()

  def __post_init__(self):
    if self.classes < 2:
      raise ValueError(f'classes={self.classes} must be at least 2')
    if not 0 <= self.label_smoothing < 1:
      raise ValueError(f'label_smoothing={self.label_smoothing} must lie in [0, 1)')

  @property
  def document_kinds(self):
    return (('text', 'labels'),) if self.words else (('text', 'label'), ('image', 'label'))

  @property
  def classifier_heads(self):
    return (('classification', self.classes, 'none' if self.words else ''),)

  @property
  def suggested_packing(self):
    return 'each'

  @property
  def required_fields(self):
    return frozenset({'classes'})

  def rows(self, packing, tokens, length, seed, tokenizer):
    require_classes(tokens, self.classes)
    return super().rows(packing, tokens, length, seed, tokenizer)

  def padding_row(self, length):
    row = {field: np.zeros(length, np.int32) for field in ('inputs', 'positions', 'segments')}
    if self.shape:
      row['image'] = np.zeros(self.shape, np.float32)
      del row['inputs']
    return row | dict(classes=np.full(length, -1, np.int32) if self.words else np.int32(-1))

  def summarize(self, total, size):
    """Returns `loss` in nats, `accuracy`, `f1`, the mean over classes of 2 · hits / (predicted + true), and
    `tokens`, the number of classified items.
    """
    del size
    count = max(total['tokens'], 1)
    matrix = total[CONFUSION_MATRIX]
    counts = matrix.sum(0) + matrix.sum(1)
    f1 = 2 * np.diag(matrix)[counts > 0] / counts[counts > 0]
    return dict(
      loss=total['loss'] / count,
      accuracy=np.trace(matrix) / count,
      f1=f1.mean() if len(f1) else 0.0,
      tokens=total['tokens'],
    )

  def __call__(self, model, params, batch, key):
    context = Context(batch['positions'], batch['segments'], train=key is not None, layout=self.layout)

    def compute_logits(model, x):
      return model.classify('classification', model.features(x, context), context)

    inputs = batch['image' if self.shape else 'inputs']
    logits, reports = self.apply_model(model, params, key, compute_logits, inputs)
    true = batch['classes']
    weights = (true >= 0).astype(jnp.float32)  # -1: no class, as in padding
    log_p = jax.nn.log_softmax(logits)
    one_hot = jax.nn.one_hot(true, self.classes)
    loss = -(one_hot * log_p).sum(-1)
    smoothed = (1 - self.label_smoothing) * loss - self.label_smoothing * log_p.mean(-1)
    predicted = log_p.argmax(-1)
    correct = (predicted == true) * weights
    sums = dict(loss=(loss * weights).sum(), accuracy=correct.sum(), tokens=weights.sum())
    if key is None:
      predictions = jax.nn.one_hot(predicted, self.classes) * weights[..., None]
      sums[CONFUSION_MATRIX] = jnp.einsum('...i,...j->ij', one_hot, predictions)
    return add_reports((smoothed * weights).sum(), sums, reports)


def require_classes(documents: Documents, classes: int) -> None:
  """Raises ValueError unless labelled documents have so many classes."""
  count = len(documents.names)
  shown = ', '.join(documents.names[:MAX_NAMES_SHOWN]) + (', …' if count > MAX_NAMES_SHOWN else '')
  require(
    count == classes,
    f'config.objective has classes={classes}, but {documents.name} has {count}: {shown}; use classes={count}',
  )
