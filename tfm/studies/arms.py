"""The arms of a study: their configs, what matching changed in them, and their estimated costs."""

import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.config.validate import validate_run
from tfm.errors import require
from tfm.models import flops
from tfm.models.trunk import Trunk
from tfm.objectives.protocol import Prediction
from tfm.runs.reference import open_reference
from tfm.shapes import PyTree
from tfm.spec import parse
from tfm.studies import cost_matching
from tfm.studies.study import STEPS, Study, change_config, prefix_errors
from tfm.training.gradient_transforms import path_name


# Fields that divide the same texts into different rows.
ROW_FIELDS = (
  'data.tokenizer',
  'data.source_tokenizer',
  'data.length',
  'data.packing',
  'training.batch_size',
  'training.gradient_accumulation',
)
# Metrics that depend on the tokenizer.
PER_TOKEN = 'loss', 'perplexity', 'accuracy'
# {arm: experiment} → {arm: seconds of a training step}.
StepTimer = Callable[[Mapping[str, Experiment]], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Arm:
  """One side of a comparison, ready to train.

  Attributes:
    name: in the study; changes: the fields that it changes, by their paths.
    experiment: of the complete, matched and resolved config; only the seed is missing.
    matched: path → (value before, value after) of the fields that matching changed.
    parameters: number of trainable parameters; flops: of training, per token; memory: bytes of one run in
      training, with estimated activations.
  """

  name: str
  changes: Mapping[str, Any]
  experiment: Experiment
  matched: Mapping[str, tuple[int, int]]
  parameters: int
  flops: float
  memory: int

  @property
  def config(self) -> ConfigDict:
    return self.experiment.config

  @property
  def tokens(self) -> int:
    """Tokens of the whole training, padding included."""
    return count_training_tokens(self.experiment)


def plan_arms(
  study: Study, names: Collection[str] | None = None, step_timer: StepTimer | None = None
) -> dict[str, Arm]:
  """The arms of a study by name, the base first.

  Args:
    names: the arms to plan; the arms that they are compared with are added; None: all.
    step_timer: measures the seconds of a training step of each arm; for match='time'.

  Raises:
    ValueError: for an invalid config, or an arm that cannot be matched, naming the arm.
  """
  base, arms = complete(study.config), {}
  if names is None:
    names = [*study.arms]
  else:
    names = [study.base, *names, *(study.against.get(name, study.base) for name in names)]
  experiments = {}
  for name in sorted(filter({*names}.__contains__, study.arms), key=lambda name: name != study.base):
    with prefix_errors(name):
      experiments[name] = apply_changes(base, study.arms[name], study.seeds)
  for name, experiment in experiments.items():
    with prefix_errors(name):
      check_same_evaluation(study.metric, experiment, experiments[study.against.get(name, study.base)])
  # The seconds of a step do not depend on the number of steps, which matching may change.
  seconds = step_timer(experiments) if study.match == 'time' else {}
  for name, experiment in experiments.items():
    with prefix_errors(name):
      matched = {}
      if name != (reference := study.matched_to(name)) and study.match:
        target = quantity_functions(seconds.get(reference))[study.match](experiments[reference])
        quantity = quantity_functions(seconds.get(name))[study.match]
        experiment, matched = match_arm(study, base, study.arms[name], quantity, target)
      arms[name] = estimate_arm(name, study.arms[name], experiment, matched, study.seeds)
  return arms


def apply_changes(base: ConfigDict, changes: Mapping[str, Any], seeds: int) -> Experiment:
  """The experiment of an arm, validated.

  Raises:
    ValueError: for an unknown field or an invalid config.
  """
  experiment = Experiment(resolve_config(change_config(base, changes)))
  validate_run(experiment, count_devices(experiment.config, seeds))
  return experiment


def check_same_evaluation(metric: str, experiment: Experiment, other: Experiment) -> None:
  """Checks that two arms that are compared are evaluated on the same texts, and in the same unit.

  loss/NAME is of one source of a mixture, whatever its weight.
  """
  config = experiment.config
  ours, theirs = (dict(leaves(each.config)) for each in (experiment, other))
  _, _, part = metric.partition('/')
  sources = ['data.source', *(field for field in ours | theirs if field.startswith('data.sources.'))]
  for field in [f'data.sources.{part}'] if part else sources:
    _require_same_texts(field, ours, theirs)
  check_same_part(metric, experiment, other)
  needs_training = experiment.tokenizer.needs_training and not experiment.tokenizer.is_trained
  require(
    not _is_per_token(metric, experiment)
    or not needs_training
    or all(ours.get(field) == theirs.get(field) for field in sources),
    f'data.tokenizer={config.data.tokenizer!r} is trained on other texts than that of the arm that it is '
    f"compared with, and metric={metric!r} is per token; use one that is not trained, such as 'bytes'",
  )


def check_same_part(metric: str, experiment: Experiment, other: Experiment) -> None:
  """Checks that two arms are evaluated on the same part of the same texts, and in the same unit.

  A whole split has the same tokens however it is divided into rows; some of its batches do not.
  """
  config, base = experiment.config, other.config
  ours, theirs = (dict(leaves(each)) for each in (config, base))
  _require_same_texts('training.evaluation_batches', ours, theirs)
  # The length of an image is its number of patches.
  images, batches = bool(experiment.source.image_shape), config.training.evaluation_batches
  for field in ROW_FIELDS:
    require(
      not batches or ours[field] == theirs[field] or images and field == 'data.length',
      f'{field}={ours[field]!r} gives other rows than {theirs[field]!r} of the arm that it is compared with, '
      f'so training.evaluation_batches={batches} evaluates other texts; use 0 to evaluate all',
    )
  whole = images or all(parse(each.data.packing).name == 'concat' for each in (config, base))
  require(
    whole or config.data.length == base.data.length,
    f'data.length={config.data.length} with data.packing={config.data.packing!r} may truncate or drop other '
    f'texts than {base.data.length} of the arm that it is compared with; use the same length',
  )
  require(
    not _is_per_token(metric, experiment) or config.data.tokenizer == base.data.tokenizer,
    f'data.tokenizer={config.data.tokenizer!r} gives other tokens than {base.data.tokenizer!r} of the arm '
    f"that it is compared with, and metric={metric!r} is per token; use metric='bits_per_byte'",
  )


def _require_same_texts(field: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
  require(
    ours.get(field) == theirs.get(field),
    f'{field}={ours.get(field)!r} evaluates other texts than {theirs.get(field)!r} of the arm that it is '
    'compared with; use the same value, or compare it with an arm that has it (in a study: against=)',
  )


def _is_per_token(metric: str, experiment: Experiment) -> bool:
  name = metric.partition('/')[0].rpartition('_')[2]
  return isinstance(experiment.objective, Prediction) and name in PER_TOKEN


def count_devices(config: ConfigDict, seeds: int) -> int:
  """Devices of one run: 1 if several seeds train in one ensemble, one device each."""
  return 1 if seeds > 1 and all(size in (1, -1) for size in config.mesh.values()) else jax.device_count()


def match_arm(
  study: Study,
  base: ConfigDict,
  changes: Mapping[str, Any],
  quantity: Callable[[Experiment], float],
  target: float,
) -> tuple[Experiment, dict[str, tuple[int, int]]]:
  """The experiment of an arm with as much of the quantity as its target, and the field that was changed.

  Raises:
    ValueError: if no value comes within 2 % of the target.
  """

  def with_value(value):
    return apply_changes(base, dict(changes) | {study.matched_field: value}, study.seeds)

  experiment = apply_changes(base, changes, study.seeds)
  before = dict(leaves(experiment.config))[study.matched_field]
  if abs(quantity(experiment) - target) <= cost_matching.EQUAL * target:
    return experiment, {}
  multiple = 1 if study.matched_field == STEPS else study.multiple
  try:
    after, _ = cost_matching.solve_match(target, lambda value: quantity(with_value(value)), before, multiple)
  except ValueError as error:
    raise ValueError(
      f'match={study.match!r} cannot be reached by matched_field={study.matched_field!r}: {error}'
    ) from error
  return with_value(after), {study.matched_field: (before, after)}


def quantity_functions(step_seconds: float | None) -> dict[str, Callable[[Experiment], float]]:
  """Functions experiment → quantity of the whole training, by the names of `matching.QUANTITIES`."""
  return dict(
    parameters=lambda experiment: count_trainable_parameters(
      experiment, estimate.abstract_state(experiment, build_model(experiment)).params
    ),
    flops=lambda experiment: (
      flops.training_flops_per_token(build_model(experiment), experiment.config.data.length)
      * count_training_tokens(experiment)
    ),
    tokens=count_training_tokens,
    time=lambda experiment: step_seconds * experiment.config.training.steps,
  )


def count_training_tokens(experiment: Experiment) -> int:
  """Tokens of the whole training, padding included."""
  config = experiment.config
  return config.training.steps * config.training.batch_size * config.data.length


def build_model(experiment: Experiment) -> Trunk:
  """The model, with the vocabulary sizes of its data."""
  vocab, source_vocab = estimate.vocabulary_sizes(experiment)
  return experiment.build_model(vocab, source_vocab=source_vocab)


def count_trainable_parameters(experiment: Experiment, params: PyTree) -> int:
  """Number of trainable parameters, without the frozen ones."""
  paths = jax.tree_util.tree_leaves_with_path(nn.unbox(params))
  return sum(x.size for path, x in paths if experiment.optimizer.is_trainable(path_name(path)))


def estimate_arm(
  name: str,
  changes: Mapping[str, Any],
  experiment: Experiment,
  matched: Mapping[str, tuple[int, int]],
  seeds: int,
) -> Arm:
  """The arm with its parameters, FLOPs and memory; those of a teacher count."""
  config, model = experiment.config, build_model(experiment)
  mesh = estimate.abstract_mesh(config, count_devices(config, seeds))
  vocab, source_vocab = estimate.vocabulary_sizes(experiment)
  reference = open_reference(experiment)
  state = estimate.abstract_state(experiment, model).replace(reference=reference and reference.abstract)
  memory = estimate.memory_by_kind(experiment, vocab, source_vocab, state, mesh, experiment.rules)
  return Arm(
    name,
    dict(changes),
    experiment,
    dict(matched),
    count_trainable_parameters(experiment, state.params),
    flops.training_flops_per_token(model, config.data.length)
    + (flops.per_token(reference.model, config.data.length, trains=False).forward if reference else 0),
    sum(size for _, size, _ in memory),
  )


def format_plan(study: Study, arms: Mapping[str, Arm], seconds: Mapping[str, float]) -> Table:
  """The plan as a table for the terminal, a row for each arm; with what the literature says, before it runs.

  Args:
    seconds: estimated for all seeds of an arm, by name, where known.
  """
  title = study.question + f'\nLiterature: {study.literature}' * bool(study.literature)
  table = Table(title=title, title_justify='left', box=box.SIMPLE)
  matched = any(arm.matched for arm in arms.values())
  for column in ('arm', 'changes', *(['matched by'] if matched else [])):
    table.add_column(column, overflow='fold')
  for column in ('parameters', 'FLOPs/token', 'tokens', 'memory', 'time, by FLOPs'):
    table.add_column(column, justify='right', no_wrap=True)
  for name, arm in arms.items():
    changes = (
      '\n'.join(f'{path.rpartition(".")[2]}={value!r}' for path, value in arm.changes.items()) or 'the base'
    )
    fields = '\n'.join(f'{path.rpartition(".")[2]} {a:,} → {b:,}' for path, (a, b) in arm.matched.items())
    table.add_row(
      name,
      changes,
      *([fields] if matched else []),
      format_number(arm.parameters),
      format_number(arm.flops),
      format_number(arm.tokens),
      f'{arm.memory / 2**20:,.0f} MiB',
      format_duration(seconds[name]) if name in seconds else '',
    )
  if seconds:
    table.caption = (
      f"total {format_duration(sum(seconds.values()))}: training steps only, scaled by FLOPs from the base's "
      'measured step; compilation, validation and measures are not included'
    )
    table.caption_justify = 'left'
  return table


def format_duration(seconds: float) -> str:
  """`1:02:03`."""
  return str(datetime.timedelta(seconds=round(seconds)))


def format_number(number: float) -> str:
  """`1.23 M`."""
  for unit in ('', ' k', ' M', ' G', ' T'):
    if number < 1000:
      break
    number /= 1000
  return f'{number:.4g}{unit}'


def estimate_seconds(study: Study, arms: Mapping[str, Arm], names: Iterable[str]) -> dict[str, float]:
  """Training seconds of all seeds of some arms, and of the runs that select their learning rates: the base's
  measured step, scaled by FLOPs.
  """
  base = arms[study.base]
  runs = (study.seeds + study.selection_runs) / study.seeds
  rate = (
    estimate.measure_step(base.experiment, study.seeds).seconds
    * base.config.training.steps
    / (base.flops * base.tokens)
  )
  return {name: runs * rate * arms[name].flops * arms[name].tokens for name in names}
