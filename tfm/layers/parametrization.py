"""How initial values, learning rates and multipliers depend on the width of a model, and which weights have
length one.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from tfm.errors import require
from tfm.layers.initializer import Axes, Factory, Initializer
from tfm.layers.unit_vectors import normalize, unit_axis
from tfm.parallel.sharding import Parameter
from tfm.shapes import Array
from tfm.spec import Size


# Logical axes whose size grows with the width of a model; those of other axes stay as they are.
WIDTH_AXES = frozenset({'embed', 'mlp', 'heads', 'kv_heads', 'kv'})


@dataclasses.dataclass(frozen=True)
class Standard:
  """The same learning rate for all parameters; initial values as the initializers say.

  Attributes:
    width: D.
    depends_on_width: whether learning rates and multipliers differ from 1.
    has_unit_weights: whether matrices consist of vectors of length 1, with learned scales beside them.
    multiplier: m, how much wider the model is than the one that the hyperparameters are for.
  """

  depends_on_width: ClassVar[bool] = False
  has_unit_weights: ClassVar[bool] = False

  width: int

  @property
  def multiplier(self) -> float:
    return 1.0

  def score_scale(self, head_width: int) -> float | None:
    """The factor on products of queries and keys of `head_width` channels; None: as the score says."""
    return None

  def scale_initializer(self, factory: Factory) -> Factory:
    """The initializer of a projection at this width, of the one at the base width."""
    return factory

  def rate_factor(self, parameter: Parameter, normalizes_updates: bool) -> float:
    """The factor on the learning rate of a parameter.

    Args:
      normalizes_updates: whether the size of an update does not depend on that of the gradient, as in Adam.
    """
    return 1.0


@dataclasses.dataclass(frozen=True)
class Mup(Standard):
  """The maximal update parametrization: the best hyperparameters of the base width stay the best at others
  (Yang et al. 2022, Tensor Programs V, tables 3 and 8).

  With m = width / base_width, and the initial standard deviation σ and the learning rate of the base width:

                                                 initial     rate, Adam   rate, SGD
    from the width to the width                  σ / √m      1 / m        1
    to the width: embeddings, norms, biases      σ           1            m
    from the width: classes, untied logits       σ / m       1 / m        1 / m

  Logits of tied embeddings are divided by m, and products of queries and keys are multiplied by √C₀ / C,
  where C₀ are the channels of a head at the base width. At the base width all is as in `standard`. Weight
  decay is multiplied by the learning rate as everywhere, so that of matrices falls with it. A tied table
  whose initial values are small learns slowly far above the base width (docs/results/studies/mup.md).

  Attributes:
    base_width: D of the model whose hyperparameters these are.
    base_head_width: C₀; None: a head is as much wider as the model is. Where the head width is fixed and
      heads are added, give the head width.
  """

  depends_on_width: ClassVar[bool] = True

  base_width: Size
  base_head_width: Size | None = None

  @property
  def multiplier(self) -> float:
    return self.width / self.base_width

  def score_scale(self, head_width: int) -> float:
    base = self.base_head_width or head_width / self.multiplier
    return base**0.5 / head_width

  def scale_initializer(self, factory: Factory) -> Factory:
    def make(inputs, outputs):
      initializer = factory(inputs, outputs)

      def adjust(values, names, contracted):
        target = _by_role(names, contracted, self.multiplier**-0.5, 1.0, 1 / self.multiplier)
        return target / _own_gain(initializer, names, values.shape, self.multiplier) * values

      return dataclasses.replace(initializer, adjust=adjust)

    return Factory(make)

  def rate_factor(self, parameter: Parameter, normalizes_updates: bool) -> float:
    rank = len(parameter.names)
    inputs = tuple(axis + rank for axis in parameter.inputs)
    m = self.multiplier
    rates = (1 / m, 1.0, 1 / m) if normalizes_updates else (1.0, m, 1 / m)
    return _by_role(parameter.names, inputs, *rates)


@dataclasses.dataclass(frozen=True)
class UnitWeights(Standard):
  """Weights on a sphere; together with the residual stream of unit length of `residuals/spherical.py` this is
  nGPT (Loshchilov et al. 2024, §2.6).

  Every vector of length D in a matrix, such as the embedding of a token, the weights from the stream to one
  hidden channel or those from it back, has length 1 at the start and after every update, so that products are
  cosines. Learned scales beside them start at 1:

    queries and keys  those of `qk_norm` (eq. 15 and 16; there after the rotation, and one for both)
    hidden layers     up ← √D s_up ⊙ up before the activation, gate ← s_gate ⊙ gate (eq. 20 and 21)
    logits            z ← s_z ⊙ z, for each token (eq. 3)

  The scales of queries, keys and logits learn √D times as fast as matrices (D times by SGD), which is what it
  means that they are stored divided by √D (§2.5). There is no norm, the last one included. Weight decay and
  warm-up are left out in the paper.
  """

  depends_on_width: ClassVar[bool] = True
  has_unit_weights: ClassVar[bool] = True

  def scale_initializer(self, factory: Factory) -> Factory:
    def adjust(values: Array, names: tuple[str, ...], contracted: Axes) -> Array:
      axis = unit_axis(names)
      return values if axis is None else normalize(values, axis)

    def make(inputs, outputs):
      initializer = factory(inputs, outputs)
      return dataclasses.replace(initializer, name=f'{initializer}, unit length', adjust=adjust)

    return Factory(make)

  def rate_factor(self, parameter: Parameter, normalizes_updates: bool) -> float:
    is_scale = [name for name in parameter.names if name != 'layers'] in (['kv'], ['vocab'])
    return self.width ** (0.5 if normalizes_updates else 1.0) if is_scale else 1.0


def _by_role(
  names: tuple[str, ...], inputs: Axes, matrix: float, to_width: float, from_width: float
) -> float:
  """One of three values, by whether input and other axes grow with the width; 1 if none does."""
  grow = {axis for axis, name in enumerate(names) if name in WIDTH_AXES}
  values = {(True, True): matrix, (False, True): to_width, (True, False): from_width}
  return values.get((bool(grow & {*inputs}), bool(grow - {*inputs})), 1.0)


def _own_gain(initializer: Initializer, names: tuple[str, ...], shape: tuple[int, ...], m: float) -> float:
  """The initial standard deviation of an array over that of the same array at the base width."""
  if not initializer.fan:
    return 1.0
  fans = [
    (math.prod(shape[axis] for axis in axes), any(names[axis] in WIDTH_AXES for axis in axes))
    for axes in (initializer.inputs, initializer.outputs)
  ]
  fans = fans if initializer.fan == 'fan_avg' else fans[:1]
  here, at_base = (sum(size / by**grows for size, grows in fans) for by in (1, m))
  return math.sqrt(at_base / here)


def rate_factors(
  parametrization: Standard,
  parameters: Mapping[str, Parameter],
  normalizes_updates: bool | None,
  optimizer: str,
) -> dict[str, float]:
  """The factor on the learning rate of every parameter, by path.

  Args:
    parameters: boxed, by path; their shapes do not matter.
    normalizes_updates: of the optimizer, which has no rule if it is None.
    optimizer: its name, for the message.

  Raises:
    ValueError: for an optimizer without a rule.
  """
  require(
    normalizes_updates is not None,
    f'{optimizer!r} has no rule for the rates of config.model.parametrization; use adam, adamw, lion or sgd',
  )
  return {path: parametrization.rate_factor(x, normalizes_updates) for path, x in parameters.items()}


PARAMETRIZATIONS = {'standard': Standard, 'mup': Mup, 'unit_weights': UnitWeights}
