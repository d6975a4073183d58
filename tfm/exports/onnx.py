"""An ONNX graph, which ONNX Runtime runs."""

import dataclasses

from tfm.errors import importing_extra
from tfm.exports._forward import UNTRACEABLE, build_forward, save_description
from tfm.exports.protocol import Format
from tfm.spec import SizeOrZero


@dataclasses.dataclass(frozen=True)
class ONNX(Format):
  """model.onnx, by `jax2onnx`, with the weights, and export.json with its inputs. The outputs are logits by
  name, and, with a cache, what its arrays become.

  Attributes:
    batch, length: the sizes of the inputs; 0: any.
    cache: of a decoder, how many tokens of a row a cache has room for; 0: none, so that each token of a text
      that is generated computes the whole text.
  """

  batch: SizeOrZero = 0
  length: SizeOrZero = 0
  cache: SizeOrZero = 0

  def write(self, run, workdir, folder):
    with importing_extra('onnx'):
      import jax2onnx
      import onnx
    forward = build_forward(run, self.batch, self.length, self.cache)
    names = forward.output_names
    invalid = onnx.checker.ValidationError, onnx.shape_inference.InferenceError

    def compute(*inputs):
      outputs = forward.compute(forward.params, *inputs)
      return tuple(outputs[name] for name in names)

    try:
      model = jax2onnx.to_onnx(
        compute,
        forward.symbolic_inputs(),
        model_name='tfm',
        input_names=[one.name for one in forward.inputs],
        output_names=names,
      )
      # By its types, too: some operators do not take all that they are given.
      onnx.checker.check_model(model, full_check=True)
    except (*UNTRACEABLE, *invalid) as error:
      reason = str(error).strip().partition('\n')[0]
      raise ValueError(
        f'--workdir={workdir} has a model that jax2onnx does not convert ({reason}); set the sizes, as in '
        "--format='onnx(batch=1, length=128)', or use --format=stablehlo"
      ) from error
    onnx.save(model, folder / 'model.onnx')
    return 'model.onnx, beside ' + save_description(folder, run, forward, outputs=names)
