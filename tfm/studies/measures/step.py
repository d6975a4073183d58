"""Time and memory of a training step on this machine."""

import dataclasses

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.data.special_tokens import base_tokenizer
from tfm.models import flops
from tfm.runs import load as runs
from tfm.spec import PositiveInt, Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Step(protocol.Measure):
  """`step_seconds` and `step_bytes` of the config's training step on one device: the median time, and the
  peak memory by the compiler's analysis. At other row lengths, in batches of at most as many tokens:
  `step_seconds_per_token_at_length`, `step_bytes_per_token_at_length` and `flops_per_token_at_length`.

  They do not depend on the seed: measured once for each arm and reported for every seed.

  Attributes:
    lengths: row lengths in addition to the config's; rounds: number of timed steps.
  """

  cost_metrics = 'step_seconds', 'step_bytes'

  lengths: tuple[Size, ...] = ()
  rounds: PositiveInt = 5

  def metric_names(self, validation):
    return self.cost_metrics

  def prepare(self, run):
    cost = estimate.measure_step(run.experiment, rounds=self.rounds)
    values = [Value('step_seconds', cost.seconds), Value('step_bytes', cost.peak_bytes)]
    tokenizer = base_tokenizer(run.tokenizer)
    tokens = run.config.training.batch_size * run.config.data.length
    for length in self.lengths:
      config = run.config.copy_and_resolve_references()
      config.data.length, config.training.gradient_accumulation = length, 1
      config.training.batch_size = rows = max(1, tokens // length)
      experiment = Experiment(config)
      model = runs.build_model(experiment, tokenizer, run.source_tokenizer)
      cost = estimate.measure_step(experiment, rounds=self.rounds)
      values += [
        Value('step_seconds_per_token_at_length', cost.seconds / (rows * length), length),
        Value('step_bytes_per_token_at_length', cost.peak_bytes / (rows * length), length),
        Value('flops_per_token_at_length', flops.training_flops_per_token(model, length), length),
      ]
    return lambda params: values
