"""An ONNX graph, which ONNX Runtime runs."""

import dataclasses
import types

import numpy as np

from tfm.errors import importing_extra
from tfm.exports._forward import build_forward, save_description
from tfm.exports.protocol import Format
from tfm.spec import SizeOrZero


@dataclasses.dataclass(frozen=True)
class ONNX(Format):
  """model.onnx, by `jax2onnx`, with the weights, and export.json with its inputs. The outputs are logits by
  name; there is no cache, so each token of a text that is generated computes the whole text.

  Attributes:
    batch, length: the sizes of the inputs; 0: any.
  """

  batch: SizeOrZero = 0
  length: SizeOrZero = 0

  def write(self, run, workdir, folder):
    with importing_extra('onnx'):
      import jax2onnx
      import onnx
    forward = build_forward(run, self.batch, self.length)
    names = forward.output_names

    def compute(*inputs):
      logits = forward.compute(forward.params, *inputs)
      return tuple(logits[name] for name in names)

    inputs = [types.SimpleNamespace(shape=one.shape, dtype=np.dtype(one.dtype)) for one in forward.inputs]
    try:
      model = jax2onnx.to_onnx(
        compute,
        inputs,
        model_name='tfm',
        input_names=[one.name for one in forward.inputs],
        output_names=names,
      )
    except (TypeError, ValueError, NotImplementedError) as error:
      reason = str(error).strip().partition('\n')[0]
      raise ValueError(
        f'--workdir={workdir} has a model that jax2onnx does not convert ({reason}); set the sizes, as in '
        "--format='onnx(batch=1, length=128)', or use --format=stablehlo"
      ) from error
    onnx.save(model, folder / 'model.onnx')
    save_description(folder, run, forward, outputs=names)
    return 'model.onnx and export.json'
