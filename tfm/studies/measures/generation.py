"""Texts that an encoder-decoder generates, compared with the references."""

import dataclasses

from tfm import spec
from tfm.evaluation.text_metrics import METRICS
from tfm.runs import load as runs
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Generation(protocol.Measure):
  """A text metric of the targets generated for a split's sources, as in `tfm evaluate --metric=…`; named
  SPLIT_METRIC.

  Attributes:
    metric: a spec: 'bleu', 'exact', ….
    split: 'validation' or 'test'.
  """

  metric: str = 'bleu'
  split: str = 'test'

  def validate(self, experiment, model):
    if not hasattr(model, 'encode'):
      raise ValueError(
        f"measures='generation({self.metric!r})' needs an encoder-decoder, and config.model.architecture="
        f'{experiment.config.model.architecture!r}; remove the measure'
      )
    spec.build_from_table(self.metric, METRICS)

  def metric_names(self, validation):
    return self._add_prefix(spec.build_from_table(self.metric, METRICS)(['one'], ['one']))

  def _add_prefix(self, values):
    """The numbers of a metric, without signatures, with the split as prefix."""
    return {f'{self.split}_{name}': value for name, value in values.items() if not isinstance(value, str)}

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    metric = spec.build_from_table(self.metric, METRICS)

    def measure(params):
      pairs, outputs = runs.translate_split(dataclasses.replace(run, params=params), self.split)
      hypotheses = dict(outputs)
      values = metric(
        [hypotheses[i][0].text for i in range(len(pairs))], [reference for _, reference in pairs]
      )
      return [Value(name, value) for name, value in self._add_prefix(values).items()]

    return measure
