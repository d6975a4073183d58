"""Where the loss lies: in what the context repeats, in what only it tells, in rare tokens, by position."""

import dataclasses
import itertools

from tfm.evaluation.loss_slices import MAX_COUNT, NAMES
from tfm.runs.slices import evaluate_slices, validate_slices
from tfm.spec import NonNegativeInt, Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class LossSlices(protocol.Measure):
  """`loss_in_SLICE` of the targets that end an n-gram of their context (`repeated`) and of those that do not
  (`new`); of the repeated ones whose n-gram is seldom in training (`ar_hits` of Arora et al. 2023, Zoology,
  §3.1) and of all `other` targets; of `rare`, `medium` and `frequent` tokens; and `loss_at_position` by the
  number of tokens before them.

  Attributes:
    ngram: tokens of an n-gram, the target included.
    split: the split to evaluate.
    batches: how many batches, spread over the split; 0: as many as the validation of training.
    max_count: how often the training split may have the n-gram of an AR hit.
  """

  ngram: Size = 2
  split: str = 'validation'
  batches: NonNegativeInt = 0
  max_count: NonNegativeInt = MAX_COUNT

  def validate(self, experiment, model):
    validate_slices(experiment.objective, self.ngram)

  def metric_names(self, validation):
    return tuple(f'loss_in_{name}' for name in itertools.chain(*NAMES))

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    batches = self.batches or run.config.training.evaluation_batches

    def measure(params):
      trained = dataclasses.replace(run, params=params)
      found = evaluate_slices(trained, self.split, self.ngram, batches, self.max_count)
      return [
        Value('loss_at_position', part.loss, part.first)
        if part.name == 'position'
        else Value(f'loss_in_{part.name}', part.loss, why='' if part.tokens else 'no such target')
        for part in found
      ]

    return measure
