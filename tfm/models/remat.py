"""Rematerialization: what the backward pass stores of a layer, and what it computes again (Chen et al. 2016).

The input of a layer, or of a turn of the pattern, is stored in any case; a policy says what else.

  everything                                  nothing is computed again
  none · full                                 all but elementwise functions (`keep_products`) · nothing
  dots · dots_with_no_batch_dims              products · products of activations with parameters
  save('attention mixer/q')                   what has these names
  offload('block_input')                      nothing, and this moves to host memory meanwhile
  save('attention', offload='block_input')    both

Names are `block_input`; of a branch's output `mixer`, `cross` or `feed_forward`; of a projection's output its
path, such as `mixer/q` or `feed_forward/up`; `attention`, the output of an attention kernel before the output
projection, with what the backward pass of the kernel needs of the forward pass; `states`, of Mamba and
Mamba-2 between chunks, with the outputs of the chunks; and `exchanged`, what the mesh axis `ulysses`
exchanges, and the tokens that experts with a capacity get. The first are in MaxText decoder_layer_input;
out_proj and mlpwo; query_proj and mlpwi; context.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.extend.core.primitives import name_p

from tfm.errors import require
from tfm.kernels.protocol import CHECKPOINT_NAME, FUSED_ATTENTION
from tfm.parallel.host_memory import HOST_MEMORY


Policy = Callable[..., object]


@dataclasses.dataclass(frozen=True)
class NamePolicy:
  """The checkpoint policy that stores what has a name, and nothing else.

  Attributes:
    saved: names of what stays on the device; offloaded: of what moves to host memory until it is needed.
  """

  saved: tuple[str, ...]
  offloaded: tuple[str, ...]

  def __call__(self, primitive, *args, **fields):
    if primitive.name in FUSED_ATTENTION:  # its residuals cannot be named
      primitive, fields = name_p, dict(name=CHECKPOINT_NAME)
    is_stored = primitive is name_p and fields['name'] in self.saved + self.offloaded
    return is_stored and self._policy(primitive, *args, **fields)

  @functools.cached_property
  def _policy(self) -> Policy:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
      names_which_can_be_saved=self.saved,
      names_which_can_be_offloaded=self.offloaded,
      offload_src='device',
      offload_dst=HOST_MEMORY,
    )


def save(names: str, offload: str = '') -> NamePolicy:
  """Stores what has these names, separated by spaces, on the device; what `offload` names, in host memory."""
  saved, offloaded = tuple(names.split()), tuple(offload.split())
  require(bool(saved + offloaded), "it has no names; use 'full' to store nothing")
  for name in saved + offloaded:
    require((saved + offloaded).count(name) == 1, f'it has {name!r} twice; leave one out')
  return NamePolicy(saved, offloaded)


def offload(names: str) -> NamePolicy:
  """Stores what has these names, separated by spaces, in host memory."""
  return save('', names)


# Each element of the result is computed from one of each argument, or is one of them. Without comparisons:
# their results take a byte, and what they compare may take more, such as the random numbers of dropout.
ELEMENTWISE = frozenset(
  'abs add add_any and broadcast_in_dim clamp concatenate convert_element_type copy cos div erf erfc exp '
  'exp2 expm1 integer_pow iota log log1p logistic max min mul neg not or pad pow reduce_precision rem '
  'reshape rsqrt select_n sharding_constraint sign sin slice split sqrt square squeeze stack stop_gradient '
  'sub tanh transpose unstack'.split()
)


def keep_products(primitive, *args, **fields) -> bool:
  """The policy that computes again what is computed element by element, such as norms and activations, and
  stores whatever else the backward pass needs: products, sums, kernels, recurrences, comparisons.
  """
  return primitive.name not in ELEMENTWISE


# name → the checkpoint policy; None: `keep_products`, where layers are scanned.
REMAT = {
  'none': lambda: None,
  'everything': lambda: jax.checkpoint_policies.everything_saveable,
  'full': lambda: jax.checkpoint_policies.nothing_saveable,
  'dots': lambda: jax.checkpoint_policies.dots_saveable,
  'dots_with_no_batch_dims': lambda: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'save': save,
  'offload': offload,
}


def list_names(jaxpr: Jaxpr) -> Iterator[str]:
  """The names in a program, also in inner ones."""
  for eqn in jaxpr.eqns:
    if eqn.primitive is name_p:
      yield eqn.params['name']
    for inner in jaxprs_in_params(eqn.params):
      yield from list_names(inner)
