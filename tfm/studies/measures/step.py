"""What a training step costs on the machine that is here."""

import dataclasses

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.data.special import plain
from tfm.models import flops
from tfm.runs import load as runs
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Step(protocol.Measure):
  """`step_seconds` and `step_bytes` of the step that the config states, on one device: the median time, and the most that
  the compiler lets it hold. In rows of other lengths, of as many tokens in all as there is room for in whole rows,
  `step_seconds_per_token_at_length`, `step_bytes_per_token_at_length` and `flops_per_token_at_length`.

  They are of the arm, not of a seed: measured once, and told of each.

  Attributes:
    lengths: of the rows, beside the config's own; rounds: timed steps.
  """

  costs = 'step_seconds', 'step_bytes'

  lengths: tuple[int, ...] = ()
  rounds: int = 5

  def plain(self, validation):
    return self.costs

  def prepare(self, run):
    cost = estimate.measure_step(Experiment(run.config), rounds=self.rounds)
    found = [Value('step_seconds', cost.seconds), Value('step_bytes', cost.peak_bytes)]
    tokenizer = plain(run.tokenizer)
    tokens = run.config.training.batch_size * run.config.data.length
    for length in self.lengths:
      config = run.config.copy_and_resolve_references()
      config.data.length, config.training.gradient_accumulation = length, 1
      config.training.batch_size = rows = max(1, tokens // length)
      model, cost = (
        runs.build_model(Experiment(config), tokenizer, run.source_tokenizer),
        estimate.measure_step(Experiment(config), rounds=self.rounds),
      )
      found += [
        Value('step_seconds_per_token_at_length', cost.seconds / (rows * length), length),
        Value('step_bytes_per_token_at_length', cost.peak_bytes / (rows * length), length),
        Value('flops_per_token_at_length', flops.training_flops_per_token(model, length), length),
      ]
    return lambda params: found
