"""What an encoder-decoder writes, beside the references."""

import dataclasses

from tfm import spec
from tfm.evaluation.text_metrics import METRICS
from tfm.runs import load as runs
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Written(protocol.Measure):
  """A metric of the targets that are written for a split's sources, as `tfm evaluate --metric=…` has it.

  Attributes:
    metric: a spec: 'bleu', 'exact', ….
  """

  metric: str = 'bleu'
  split: str = 'test'

  def check(self, config, model):
    if not hasattr(model, 'encode'):
      raise ValueError(
        f'measures={self.metric!r} compares written targets, and the model is no encoder-decoder; another '
        'measure would do'
      )
    spec.build_from_table(self.metric, METRICS)

  def plain(self, validation):
    return self.named(spec.build_from_table(self.metric, METRICS)(['one'], ['one']))

  def named(self, values):
    """Its numbers, and no signatures, by the split that they are of."""
    return {f'{self.split}_{name}': value for name, value in values.items() if not isinstance(value, str)}

  def prepare(self, run):
    self.check(run.config, run.model)
    metric = spec.build_from_table(self.metric, METRICS)

    def measure(params):
      pairs, found = runs.translate_split(dataclasses.replace(run, params=params), self.split)
      hypotheses = dict(found)
      values = metric(
        [hypotheses[i][0].text for i in range(len(pairs))], [reference for _, reference in pairs]
      )
      return [Value(name, value) for name, value in self.named(values).items()]

    return measure
