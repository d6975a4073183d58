"""A program of StableHLO, which JAX runs without this package."""

import dataclasses

import jax
from jax import export

from tfm.errors import importing_extra, require
from tfm.exports._forward import UNTRACEABLE, build_forward, save_description, save_params
from tfm.exports.protocol import Format
from tfm.runs.init_from import leaves_by_path
from tfm.spec import SizeOrZero


with importing_extra('stablehlo'):
  import flatbuffers  # noqa: F401, by which jax.export serializes


WEIGHTS = 'inside', 'beside'
PLATFORMS = 'cpu', 'cuda', 'tpu'


@dataclasses.dataclass(frozen=True)
class StableHLO(Format):
  """model.stablehlo, by `jax.export`, for CPUs, GPUs and TPUs, and export.json with its inputs.

    program = jax.export.deserialize(pathlib.Path('model.stablehlo').read_bytes())
    logits = program.call(tokens)['logits']

  Attributes:
    batch, length: the sizes of the inputs; 0: any.
    cache: of a decoder, how many tokens of a row a cache has room for; 0: there is none.
    weights: 'inside' the program, or 'beside' it in model.safetensors: the first argument is then a dict of
      all its tensors by name.
  """

  batch: SizeOrZero = 0
  length: SizeOrZero = 0
  cache: SizeOrZero = 0
  weights: str = 'inside'

  def __post_init__(self):
    require(self.weights in WEIGHTS, f"weights={self.weights!r} must be 'inside' or 'beside'")

  def write(self, run, workdir, folder):
    forward = build_forward(run, self.batch, self.length, self.cache)
    inputs = forward.symbolic_inputs()
    leaves, structure = leaves_by_path(forward.params), jax.tree.structure(forward.params)

    def beside(tensors, *inputs):
      return forward.compute(jax.tree.unflatten(structure, [tensors[name] for name in leaves]), *inputs)

    def inside(*inputs):
      return beside(leaves, *inputs)

    is_inside = self.weights == 'inside'
    if not is_inside:
      inputs = [jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), leaves), *inputs]
    try:
      exported = export.export(jax.jit(inside if is_inside else beside), platforms=PLATFORMS)(*inputs)
    except UNTRACEABLE as error:
      reason = str(error).strip().partition('\n')[0]
      raise ValueError(
        f'--workdir={workdir} has a model that cannot be traced for any size ({reason}); set the sizes, '
        "as in --format='stablehlo(batch=1, length=128)'"
      ) from error
    (folder / 'model.stablehlo').write_bytes(exported.serialize())
    described = save_description(folder, run, forward, weights=self.weights)
    if is_inside:
      return f'model.stablehlo with its weights, beside {described}'
    count = save_params(folder, forward.params)
    return f'model.stablehlo, its {count} tensors in model.safetensors, beside {described}'
