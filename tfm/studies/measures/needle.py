"""Whether a number is found again, by where it was told and how long the text is."""

import dataclasses

from tfm.config.assemble import Experiment
from tfm.data import cache, pipeline
from tfm.data.sources import needle as needles
from tfm.data.special import plain
from tfm.evaluation.length import impossible
from tfm.parallel import sharding
from tfm.runs import load as runs
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Needle(protocol.Measure):
  """`exact_in_LENGTH_at_depth`: of texts of so many characters with the number at that depth, the share whose number is
  told right (Kamradt 2023, "Needle in a haystack"), for a decoder that learnt from source='needle(…)'.

  The texts are of the run's own source but for their length and depth, and none of them was trained on.

  Attributes:
    lengths: characters of a text; (): a half, one, two, four and eight times that of training.
    depths: shares of the sentences that stand before the number; texts: of each length and depth.
  """

  lengths: tuple[int, ...] = ()
  depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
  texts: int = 100

  def check(self, config, model):
    if not isinstance(Experiment(config).source, needles.Needle):
      raise ValueError(
        f"measures='needle' asks what learnt from a needle, and the run learns from {config.data.source!r}; "
        "config.data.source='needle' would do"
      )

  def plain(self, validation):
    return ()

  def prepare(self, run):
    self.check(run.config, run.model)
    source = run.experiment.source
    L = source.length
    asked = {}
    with sharding.context(run.mesh, run.rules):
      where = sharding.batch_sharding(run.mesh, run.rules)
      for length in self.lengths or (L // 2, L, 2 * L, 4 * L, 8 * L):
        config = run.config.copy_and_resolve_references()
        config.data.length = length + 1
        for depth in self.depths:
          texts = dataclasses.replace(source, length=length, longer=None, depth=depth, held_out=self.texts)
          data = pipeline.open_data(texts, plain(run.tokenizer), cache.directory())
          asked[length, depth] = runs.build_evaluate_fn(
            Experiment(config), run.model, data, where, 'validation', batches=0
          )

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        return [found(params, *at) for at in asked]

    def found(params, length, depth):
      why = impossible(run.model, length + 1)
      return Value(
        f'exact_in_{length}_at_depth', None if why else asked[length, depth](params)['exact'], depth, why
      )

    return measure
