"""Needle in a haystack: retrieval of a number, by its depth in the text and the length of the text."""

import dataclasses

from tfm.config.assemble import Experiment
from tfm.data import cache, pipeline
from tfm.data.sources import needle as needles
from tfm.data.special_tokens import base_tokenizer
from tfm.evaluation.length_extrapolation import explain_impossible
from tfm.parallel import sharding
from tfm.runs.measure_split import build_evaluate_fn
from tfm.spec import Fraction, PositiveInt, Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Needle(protocol.Measure):
  """`exact_in_LENGTH_at_depth`: the share of texts of LENGTH characters, with the number at a depth, for
  which the model answers the number exactly (Kamradt 2023, "Needle in a haystack"); for decoders trained on
  source='needle(…)'.

  The texts come from the run's own source at another length and depth; none of them is in the training split.

  Attributes:
    lengths: characters of a text; (): 0.5, 1, 2, 4 and 8 times the training length.
    depths: fraction of the sentences that precede the number; texts: number of texts for each length and
      depth.
  """

  lengths: tuple[Size, ...] = ()
  depths: tuple[Fraction, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
  texts: PositiveInt = 100

  def validate(self, experiment, model):
    if not isinstance(experiment.source, needles.Needle):
      raise ValueError(
        f"measures='needle' needs a run that trains on a needle, and "
        f'config.data.source={experiment.config.data.source!r}; '
        "use config.data.source='needle'"
      )

  def metric_names(self, validation):
    return ()

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    source = run.experiment.source
    L = source.length
    evaluate = {}
    with sharding.context(run.mesh, run.rules):
      where = sharding.batch_sharding(run.mesh, run.rules)
      for length in self.lengths or (L // 2, L, 2 * L, 4 * L, 8 * L):
        config = run.config.copy_and_resolve_references()
        config.data.length = length + 1
        for depth in self.depths:
          texts = dataclasses.replace(source, length=length, longer=None, depth=depth, held_out=self.texts)
          data = pipeline.open_data(texts, base_tokenizer(run.tokenizer), cache.directory())
          evaluate[length, depth] = build_evaluate_fn(
            Experiment(config), run.model, data, where, 'validation', batches=0
          )

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        return [measure_at(params, *at) for at in evaluate]

    def measure_at(params, length, depth):
      reason = explain_impossible(run.model, length + 1)
      return Value(
        f'exact_in_{length}_at_depth',
        None if reason else evaluate[length, depth](params)['exact'],
        depth,
        reason,
      )

    return measure
