"""Memory and speed of decoding with the cache."""

import dataclasses

from tfm.evaluation import cost
from tfm.parallel import sharding
from tfm.spec import Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Decoding(protocol.Measure):
  """`cache_bytes_per_token` and `cache_bytes_constant` of a sequence, computed from shapes, and the measured
  `decoding_tokens_per_second`.

  Attributes:
    rows: sequences per batch; context: tokens in the cache at the start; tokens: number of timed tokens.
  """

  cost_metrics = 'cache_bytes_per_token', 'decoding_tokens_per_second'

  rows: Size = 1
  context: Size = 128
  tokens: Size = 64

  def validate(self, experiment, model):
    if not hasattr(model, 'init_caches'):
      raise ValueError(
        "measures='decoding' needs a model that generates text, and this one is an encoder; remove the "
        'measure'
      )
    cost.count_cache_bytes(model)

  def metric_names(self, validation):
    return 'cache_bytes_per_token', 'cache_bytes_constant', 'decoding_tokens_per_second'

  def prepare(self, run):
    size = cost.count_cache_bytes(run.model)

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        rate = cost.measure_decoding_rate(
          run.model, params, rows=self.rows, context=self.context, tokens=self.tokens
        )
      return [
        Value('cache_bytes_per_token', size.per_token),
        Value('cache_bytes_constant', size.constant),
        Value('decoding_tokens_per_second', rate),
      ]

    return measure
