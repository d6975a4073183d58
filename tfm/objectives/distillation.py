"""The softened predictions of a trained model, its teacher, and its layers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval

import tfm.objectives
from tfm import spec
from tfm.errors import require
from tfm.layers.cross_entropy import VocabShard, log_normalizer
from tfm.objectives._layer_losses import LAYER_LOSSES, project_layers, read_layers, trace_layers
from tfm.objectives.protocol import Objective, Prediction, add_reports, sum_token_losses
from tfm.shapes import Array, Float
from tfm.spec import Fraction, NonNegativeFloat, SizeOrZero


@dataclasses.dataclass(frozen=True)
class Distillation(Objective):
  """Σ over tokens of α · T² · KL(softmax(z_teacher / T) ‖ softmax(z / T)) + (1 - α) · hard loss
  (Hinton et al. 2015, §2).

  With weights of layer losses, as means over tokens times the number of predicted ones: cosine · L_cos
  (Sanh et al. 2019, DistilBERT, §2) + hidden · L_hidn + attention · L_attn (Jiao et al. 2020, TinyBERT, eq. 7
  to 9), of `tfm.objectives._layer_losses`.

  The factor T² keeps the gradient of the first term at the scale of the second for every T. The teacher is
  frozen and has no dropout; it has the student's tokenizer and any size. An evaluation measures the student
  alone, by the hard loss.

  Attributes:
    teacher: the directory of a trained or imported run.
    temperature: T; alpha: α.
    objective: the spec of the hard loss, which also says what is predicted: 'causal_lm', 'masked_lm', ….
    cosine: the weight of 1 - cos of the last hidden states.
    hidden: of the squared error of the embedded tokens and of the hidden states after each layer.
    attention: of the squared error of the attention logits of each layer. Each has the memory of all pairs of
      tokens.
    projection: the width of the teacher, to which a trained layer, one for all hidden states as in TinyBERT's
      released code, projects those of the student; 0: there is none, and widths must be equal.

  Raises:
    ValueError: for a value out of its range, an objective that does not predict tokens, layer losses of an
      encoder-decoder, and of `validate_reference` for layers that do not correspond to the teacher's.
  """

  teacher: str
  temperature: Annotated[float, Interval(gt=0, le=1e4)] = 2.0
  alpha: Fraction = 0.5
  objective: str = 'causal_lm'
  cosine: NonNegativeFloat = 0.0
  hidden: NonNegativeFloat = 0.0
  attention: NonNegativeFloat = 0.0
  projection: SizeOrZero = 0

  def __post_init__(self):
    require(self.temperature > 0, f'temperature={self.temperature} must be above 0')
    require(0 <= self.alpha <= 1, f'alpha={self.alpha} must lie in [0, 1]')
    require(
      isinstance(self.base, Prediction),
      f'objective={self.objective!r} does not predict tokens; use causal_lm, masked_lm or seq2seq',
    )
    require(
      not self.base.further_tokens,
      f'objective={self.objective!r} predicts further tokens, which the teacher does not; use causal_lm',
    )
    for name in LAYER_LOSSES:
      weight = getattr(self, name)
      require(weight >= 0, f'{name}={weight} must be 0 or more')
      require(
        not weight or 'encoder_decoder' not in self.base.architectures,
        f'{name}={weight} compares the layers of one stack, and objective={self.objective!r} trains two; set '
        'it to 0',
      )
    require(
      not self.projection or self.cosine or self.hidden,
      f'projection={self.projection} has no effect without cosine and hidden; leave it out',
    )

  @functools.cached_property
  def base(self) -> Objective:
    """The hard loss."""
    return spec.build(
      self.objective,
      tfm.objectives,
      Objective,
      chunk=self.chunk,
      layout=self.layout,
      recurrence=self.recurrence,
      shape=(),
    )

  @property
  def reference_workdir(self):
    return self.teacher

  @property
  def document_kinds(self):
    return self.base.document_kinds

  @property
  def architectures(self):
    return self.base.architectures

  @property
  def supported_layouts(self):
    return self.base.supported_layouts

  @property
  def mask_fields(self):
    return self.base.mask_fields

  @property
  def special_tokens(self):
    return self.base.special_tokens

  @property
  def classifier_heads(self):
    return self.base.classifier_heads

  @property
  def masked_fraction(self):
    return self.base.masked_fraction

  @property
  def reconstructs(self):
    return self.base.reconstructs

  @property
  def required_fields(self):
    return self.base.required_fields

  @property
  def suggested_packing(self):
    return self.base.suggested_packing

  @property
  def taught_width(self):
    return self.projection

  @property
  def layer_losses(self) -> dict[str, tuple[str, Callable]]:
    """Those of `LAYER_LOSSES` that have a weight."""
    return {name: loss for name, loss in LAYER_LOSSES.items() if getattr(self, name)}

  def validate_reference(self, model, reference, length):
    def compare(key):
      layers = [
        trace_layers(one, key, length, projects) for one, projects in ((model, True), (reference, False))
      ]
      return [
        loss(*layers, jnp.ones(layers[0].last.shape[:2], bool)) for _, loss in self.layer_losses.values()
      ]

    if self.layer_losses:
      jax.eval_shape(compare, jax.random.key(0))

  def rows(self, packing, tokens, length, seed, tokenizer):
    return self.base.rows(packing, tokens, length, seed, tokenizer)

  def padding_row(self, length):
    return self.base.padding_row(length)

  def summarize(self, total, size):
    return self.base.summarize(total, size)

  def __call__(self, model, params, batch, key, reference=None):
    if key is None:
      return self.base(model, params, batch, None)
    sow = sorted({collection for collection, _ in self.layer_losses.values()})
    student = self.base.predict(model, params, batch, key, key, sow)
    self.require_reference(reference)
    teacher = self.base.predict(reference.model, reference.params, batch, key, None, sow)
    total, sums = sum_token_losses(
      self.sum_tokens,
      [(model, params, student.features), (reference.model, reference.params, teacher.features)],
      student.targets,
      student.weights,
      self.chunk,
    )
    layers = (
      project_layers(model, params, read_layers(model, student.reports)),
      jax.lax.stop_gradient(read_layers(reference.model, teacher.reports)),
    )
    for name, (_, loss) in self.layer_losses.items():
      value = loss(*layers, batch['segments'] > 0) * sums['tokens']
      total += getattr(self, name) * value
      sums |= {f'{name}_loss': value}
    return self.base.finish(student, *add_reports(total, sums, student.reports), batch, key)

  def sum_tokens(self, logits, teacher_logits, targets, weights, shard):
    """As `Prediction.sum_tokens`, with the metric `distillation`: T² · KL."""
    hard, sums = self.base.sum_tokens(logits, targets, weights, shard)
    soft = (softened_divergence(shard, self.temperature, logits, teacher_logits) * weights).sum()
    return self.alpha * soft + (1 - self.alpha) * hard, sums | dict(distillation=soft)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def softened_divergence(
  columns: VocabShard,
  temperature: float,
  logits: Float[Array, 'B T V'],
  teacher_logits: Float[Array, 'B T V'],
) -> Float[Array, 'B T']:
  """T² · KL(p ‖ q) of every token in nats, of the softened distributions p of the teacher and q.

  Its gradient is T · (q - p); the teacher's logits have none.
  """
  return _divergence_forward(columns, temperature, logits, teacher_logits)[0]


def _divergence_forward(columns, temperature, logits, teacher_logits):
  log_q, log_p = (
    z / temperature - log_normalizer(z / temperature, columns)[..., None] for z in (logits, teacher_logits)
  )
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  divergence = p * jnp.where(columns.is_token(logits), log_p - log_q, 0)
  return temperature**2 * columns.sum(divergence), (p, q)


def _divergence_backward(columns, temperature, residuals, cotangent):
  p, q = residuals
  return temperature * cotangent[..., None] * (q - p), None


softened_divergence.defvjp(_divergence_forward, _divergence_backward)
