"""A published checkpoint, which `transformers` reads."""

import dataclasses

from tfm.exports.protocol import Format
from tfm.hf import convert


@dataclasses.dataclass(frozen=True)
class HuggingFace(Format):
  """config.json and model.safetensors of a published family, with the tensors and names of `transformers`.

  Attributes:
    family: its model_type, such as 'llama'; '': that of the import.
  """

  supports_processes = True
  has_families = True

  family: str = ''

  def write(self, run, workdir, folder):
    return convert.export_to_hf(run, workdir, str(folder), self.family or None)
