"""What an encoder-decoder writes, beside the references."""

import dataclasses

from tfm import run as runs
from tfm import spec
from tfm.evaluation.text_metrics import METRICS
from tfm.measures import protocol
from tfm.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Written(protocol.Measure):
  """A metric of the targets that are written for a split's sources, as `tfm evaluate --metric=…` has it.

  Attributes:
    metric: a spec: 'bleu', 'exact', ….
  """

  metric: str = 'bleu'
  split: str = 'test'

  def prepare(self, run):
    if not hasattr(run.model, 'encode'):
      raise ValueError(f'measures={self.metric!r} compares written targets, and the model is no encoder-decoder; another '
                       'measure would do')
    metric = spec.choose(self.metric, METRICS)

    def measure(params):
      pairs, found = runs.written(dataclasses.replace(run, params=params), self.split)
      hypotheses = dict(found)
      values = metric([hypotheses[i][0].text for i in range(len(pairs))], [reference for _, reference in pairs])
      return [Value(f'{self.split}_{name}', value) for name, value in values.items() if not isinstance(value, str)]
    return measure
