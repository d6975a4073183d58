"""The FLOPs of a model, counted in the jaxpr of its own forward pass: a variant brings no formula.

Conventions, those of PaLM's model FLOPs (Chowdhery et al. 2022, app. B) but for the mask:

  - matrix products and convolutions only, a multiplication and its addition being two;
  - a product over query-key pairs counts for the pairs that the mask lets through, whatever the
    kernel computes beyond them; cuts between packed documents are not known here and not deducted;
  - a product over rows of which some are filling, as a mixture of experts', counts for the others: it
    stands in a scope `useful:rows:all`;
  - training costs 3 forward passes, as the backward pass makes two products of each (Kaplan et al.
    2020, §2.1); what remat computes again is no work of the model's and is not counted.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator

import flax.linen as nn
import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from tfm.kernels.dense import Dense
from tfm.kernels.protocol import Kernel
from tfm.masks.protocol import density
from tfm.models.parameter_table import kind


# Added to the kind of a product that runs over query-key pairs.
PAIRS = ', query · key pairs'


@dataclasses.dataclass(frozen=True)
class Flops:
  """FLOPs per token of a sequence.

  Attributes:
    kinds: of the forward pass, by `table.kind`; products over query-key pairs stand apart (`PAIRS`),
      those that make the logits under 'output', tied or not.
    unmasked: of the forward pass, had every query met every key.
  """

  kinds: dict[str, float]
  unmasked: float

  @property
  def forward(self) -> float:
    return sum(self.kinds.values())

  @property
  def training(self) -> float:
    return 3 * self.forward


@dataclasses.dataclass(frozen=True)
class Product:
  """One matrix product or convolution of a jaxpr.

  Attributes:
    scopes: the path of name scopes that it stands in, repetitions and transformations left out.
    flops: of all its repetitions; shapes: of the operands and of the result.
  """

  scopes: tuple[str, ...]
  flops: int
  shapes: tuple[tuple[int, ...], ...]

  @property
  def kind(self) -> str:
    """By the modules in `scopes`, of which linen writes `name` or, in a method, `name.method`."""
    top, *inner = self.scopes or ('',)
    model = top.partition('.')[0]
    if f'{model}.logits' in inner:
      return 'output'
    modules = [scope.partition('.')[0] for scope in inner]
    # The model's own methods are no place.
    return kind([name for name in modules if name.isidentifier() and name != model]) + (
      PAIRS if self.pairs else ''
    )

  @property
  def pairs(self) -> bool:
    """Whether it runs over query-key pairs, and not, say, over a score's own projection of queries."""
    scope = Counted.read(self.scopes)
    if scope is None:
      return False
    T, S, _ = scope
    # One operand or the result has an axis for the keys and another for the queries, which the heads
    # of a group may share.
    return any(
      keys == S and queries % T == 0
      for shape in self.shapes
      for keys, queries in itertools.permutations(shape, 2)
    )

  @property
  def seen(self) -> float:
    """The part of the FLOPs whose pairs the mask lets through."""
    return self.flops * Counted.read(self.scopes)[2] if self.pairs else self.flops


def training_flops_per_token(model: nn.Module, length: int) -> float:
  """What training on one token of a row of `length` costs, in FLOPs: the numerator of MFU."""
  return per_token(model, length).training


def per_token(model: nn.Module, length: int, trains: bool = True) -> Flops:
  """FLOPs per token of a model on rows of `length` tokens; nothing is computed. Of an encoder-decoder, per
  token of the target and one of the source, in rows of as many.

  Args:
    trains: whether what predicts in training alone counts, such as modules of further tokens.

  Raises:
    ValueError: if a product stands in a loop whose repetitions the jaxpr does not tell.
  """
  # Vendor kernels hide their products and blockwise ones round up: what counts is the specification's.
  counted = with_kernel(model, Counted())
  example = jax.eval_shape(lambda: counted.example(1, length))
  params = jax.eval_shape(counted.init, jax.random.key(0), *example)
  has_more = getattr(counted, 'further', ()) or getattr(counted, 'reconstruction', None)
  method = 'all_logits' if trains and has_more else '__call__'
  jaxpr = jax.make_jaxpr(lambda p, *example: counted.apply(p, *example, method=method)[0])(
    params, *example
  ).jaxpr
  kinds, unmasked = {}, 0.0
  for product in products(jaxpr):
    kinds[product.kind] = kinds.get(product.kind, 0.0) + product.seen / length
    unmasked += product.flops / length
  return Flops(kinds, unmasked)


def products(jaxpr: Jaxpr, path: str = '', times: int = 1) -> Iterator[Product]:
  """Every product of a jaxpr, to any depth, with the FLOPs of all its repetitions."""
  for eqn in jaxpr.eqns:
    # Scopes of an inner jaxpr begin anew at the equation that holds it.
    here = f'{path}/{eqn.source_info.name_stack}'
    primitive = eqn.primitive.name
    if primitive in PRODUCTS:
      shapes = tuple(v.aval.shape for v in (*eqn.invars, *eqn.outvars))
      yield Product(scopes(here), useful(scopes(here), times * PRODUCTS[primitive](eqn)), shapes)
      continue
    repeats = eqn.params['length'] if primitive == 'scan' else 1
    inner = [list(products(j, here, times * repeats)) for j in jaxprs_in_params(eqn.params)]
    if primitive == 'cond':
      inner = [max(inner, key=lambda part: sum(p.flops for p in part))]
    elif primitive in ('while', 'shard_map', 'pallas_call') and any(inner):
      raise ValueError(
        f'a {primitive} in {"/".join(scopes(here))} holds matrix products, and how often they '
        'run cannot be read from it; use a scan of known length'
      )
    for part in inner:
      yield from part


def useful(scopes: tuple[str, ...], flops: int) -> int:
  """The part of the FLOPs that the scopes say is no filling."""
  for scope in scopes:
    if scope.startswith('useful:'):
      rows, of = scope.split(':')[1:]
      flops = flops * int(rows) // int(of)
  return flops


def scopes(path: str) -> tuple[str, ...]:
  """`A/A.f/vmap(b)//c` → ('A', 'A.f', 'b', 'c')."""
  while path != (path := re.sub(r'\w+\(([^()]*)\)', r'\1', path)):
    pass
  return tuple(scope for scope in path.split('/') if scope)


def _dot_general(eqn: JaxprEqn) -> int:
  (contracted, _), _ = eqn.params['dimension_numbers']
  shape = eqn.invars[0].aval.shape
  return 2 * eqn.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)


def _convolution(eqn: JaxprEqn) -> int:
  out_features = eqn.params['dimension_numbers'].rhs_spec[0]
  kernel = eqn.invars[1].aval
  return 2 * eqn.outvars[0].aval.size * kernel.size // kernel.shape[out_features]


PRODUCTS = {'dot_general': _dot_general, 'conv_general_dilated': _convolution}


@dataclasses.dataclass(frozen=True)
class Counted(Kernel):
  """The dense kernel in a scope that tells how many queries, how many keys, and the mask's density."""

  def attend(self, q, k, v, inputs):
    T, S = q.shape[1], k.shape[1]
    with jax.named_scope(f'pairs:{T}:{S}:{_density(inputs.mask, T, S)}'):
      return Dense().attend(q, k, v, inputs)

  @staticmethod
  def read(scopes: tuple[str, ...]) -> tuple[int, int, float] | None:
    """T, S and density of the innermost such scope."""
    for scope in reversed(scopes):
      if scope.startswith('pairs:'):
        T, S, share = scope.split(':')[1:]
        return int(T), int(S), float(share)
    return None


# Every layer asks, and on long rows each answer takes a while.
_density = functools.lru_cache(density)


def with_kernel(model: nn.Module, kernel: Kernel) -> nn.Module:
  """The same model with another kernel in every factory, at any depth, that was given one.

  Mixers with kernels of their own compute without them.
  """

  def swap(value):
    if isinstance(value, tuple):
      return tuple(map(swap, value))
    if isinstance(value, functools.partial):
      fields = {name: swap(field) for name, field in value.keywords.items()}
      plain = getattr(value.func, 'without_kernels', {})
      fields |= {name: field for name, field in plain.items() if name in fields}
      return functools.partial(value.func, *map(swap, value.args), **fields)
    return kernel if isinstance(value, Kernel) else value

  # Linen adds the last two to every module.
  names = {field.name for field in dataclasses.fields(model) if field.init} - {'parent', 'name'}
  return model.clone(**{name: swap(getattr(model, name)) for name in names})
