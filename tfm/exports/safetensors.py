"""The parameters alone, under their own names."""

import dataclasses

from tfm.config.load import to_json
from tfm.exports._forward import save_params
from tfm.exports.protocol import Format
from tfm.layers.lora import merge_adapters
from tfm.training.atomic_files import write_atomically


@dataclasses.dataclass(frozen=True)
class Safetensors(Format):
  """model.safetensors with the parameters by their paths, such as `embedding/table`, and config.json, the
  resolved config. Adapters are merged.
  """

  def write(self, run, workdir, folder):
    count = save_params(folder, merge_adapters(run.params))
    write_atomically(folder / 'config.json', to_json(run.config))
    return f'{count} tensors and the config'
