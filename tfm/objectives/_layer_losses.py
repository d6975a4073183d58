"""How far the layers of a model, its student, are from those of a teacher."""

from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.errors import require
from tfm.mixers.protocol import ATTENTION_LOGITS
from tfm.models.block import HIDDEN
from tfm.models.trunk import Trunk
from tfm.shapes import Array, Bool, Float, PyTree


@struct.dataclass
class Layers:
  """What a model computed of a batch; None or empty for a collection that it did not sow.

  Attributes:
    embedded, last: the input of the first layer, and the last hidden states, after the norm if there is one.
    hidden: the output of each layer.
    logits: of the attention of each layer, -inf for hidden keys; None for a mixer without attention.
  """

  embedded: Float[Array, 'B T D'] | None
  last: Float[Array, 'B T D'] | None
  hidden: Sequence[Float[Array, 'B T D'] | None]
  logits: Sequence[Float[Array, 'B H T S'] | None]


def read_layers(model: Trunk, sown: Mapping[str, PyTree]) -> Layers:
  """The layers of a model from the collections that it sowed."""
  hidden, logits = (sown.get(name, {}) for name in (HIDDEN, ATTENTION_LOGITS))
  stack = model.stack()
  outputs, attention = (stack.by_layer(tree.get('stack', {})) for tree in (hidden, logits))
  return Layers(
    hidden.get('embedded'),
    hidden.get('last'),
    [(block or {}).get('output') for block in outputs],
    [(block or {}).get('mixer', {}).get('logits') for block in attention],
  )


def project_layers(model: Trunk, params: PyTree, layers: Layers) -> Layers:
  """The layers with hidden states in the width of the teacher, if the model has a projection to it."""
  if not model.taught_width:
    return layers

  def project(x):
    return None if x is None else model.apply({'params': params}, x, method='project_to_taught')

  return layers.replace(
    embedded=project(layers.embedded), last=project(layers.last), hidden=[project(x) for x in layers.hidden]
  )


def trace_layers(model: Trunk, key: Array, length: int, projects: bool = False) -> Layers:
  """The layers of a model of random parameters on its example of `length` tokens, to trace.

  Args:
    projects: whether as `project_layers`.
  """
  example = model.example(1, length)
  params = nn.unbox(model.init(key, *example)['params'])
  sown = model.apply({'params': params}, *example, mutable=[HIDDEN, ATTENTION_LOGITS])[1]
  layers = read_layers(model, sown)
  return project_layers(model, params, layers) if projects else layers


def cosine_loss(student: Layers, teacher: Layers, is_token: Bool[Array, 'B T']) -> Float[Array, '']:
  """The mean over tokens of 1 - cos(h, h_teacher) of the last hidden states (Sanh et al. 2019, §2).

  Raises:
    ValueError: for unequal widths.
  """
  require_same_shape('cosine', student.last, teacher.last)
  a, b = (
    x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))
    for x in (student.last.astype(jnp.float32), teacher.last.astype(jnp.float32))
  )
  return mean_where(is_token, 1 - (a * b).sum(-1))


def hidden_loss(student: Layers, teacher: Layers, is_token: Bool[Array, 'B T']) -> Float[Array, '']:
  """Σ_m MSE(H_m, H_teacher,g(m)) over the layers m = 1 … M of the student, and m = 0, the embedded tokens;
  each a mean over tokens and channels (Jiao et al. 2020, eq. 8 and 9; `project_layers` is W). g is
  `spread_evenly`.

  Raises:
    ValueError: for unequal widths, or numbers of layers that g does not map.
  """
  pairs = [
    (student.embedded, teacher.embedded),
    *zip(student.hidden, spread_evenly('hidden', teacher.hidden, len(student.hidden))),
  ]
  total = 0.0
  for a, b in pairs:
    require_same_shape('hidden', a, b)
    total += mean_where(is_token, jnp.square(a.astype(jnp.float32) - b.astype(jnp.float32)).mean(-1))
  return total


def attention_loss(student: Layers, teacher: Layers, is_token: Bool[Array, 'B T']) -> Float[Array, '']:
  """Σ_m MSE(A_m, A_teacher,g(m)) over the layers m of the student, of the attention logits, before they are
  normalized (Jiao et al. 2020, eq. 7); each a mean over heads, tokens and the keys that both models see.

  Raises:
    ValueError: for unequal numbers of heads, layers without attention, or numbers of layers that g does not
      map.
  """
  del is_token  # padding sees nothing
  total = 0.0
  taught = spread_evenly('attention', teacher.logits, len(student.logits))
  for i, (a, b) in enumerate(zip(student.logits, taught)):
    require(
      a is not None and b is not None,
      f'attention compares attention logits, and the mixer of layer {i} of the student or of '
      "the teacher has none; use attention=0.0, or mixer='softmax' in both",
    )
    require(
      a.shape == b.shape,
      f'attention compares heads, and the student has {a.shape[1]} and the teacher {b.shape[1]}; use as many',
    )
    is_visible = (a > -jnp.inf) & (b > -jnp.inf)
    a, b = (jnp.where(is_visible, x.astype(jnp.float32), 0) for x in (a, b))
    total += mean_where(is_visible, jnp.square(a - b))
  return total


def spread_evenly(name: str, layers: Sequence, count: int) -> Sequence:
  """The layers of the teacher that `count` layers learn from: of N layers, layer g(m) = m · N / count for
  m = 1 … count, the last among them (Jiao et al. 2020, §4.1: the uniform strategy).

  Raises:
    ValueError: if `count` does not divide N.
  """
  stride, rest = divmod(len(layers), count)
  require(
    rest == 0 and stride > 0,
    f'{name} compares each layer of the student with one of the teacher at equal distances, and {count} does '
    f"not divide the teacher's {len(layers)} layers; use a divisor as config.model.layers",
  )
  return layers[stride - 1 :: stride]


def require_same_shape(name: str, a: Array, b: Array) -> None:
  """Raises ValueError if the widths of two hidden states differ."""
  require(
    a.shape == b.shape,
    f'{name} compares hidden states, and the width of the student is {a.shape[-1]} and that of the teacher '
    f'{b.shape[-1]}; use the same config.model.width, or projection={b.shape[-1]}',
  )


def mean_where(mask: Bool[Array, '*#N'], x: Float[Array, '*N']) -> Float[Array, '']:
  """The mean of the elements with a mask; 0 if there are none."""
  return jnp.where(mask, x, 0).sum() / jnp.maximum(jnp.broadcast_to(mask, x.shape).sum(), 1)


# The argument of `distillation` that is the weight of a loss → (the collection that it reads, the loss).
LAYER_LOSSES = {
  'cosine': (HIDDEN, cosine_loss),
  'hidden': (HIDDEN, hidden_loss),
  'attention': (ATTENTION_LOGITS, attention_loss),
}
