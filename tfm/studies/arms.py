"""The arms of a study: their configs, what matching changed in them, and what they will cost."""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.config.validate import validate_run
from tfm.errors import require, suggest
from tfm.models import flops
from tfm.objectives.protocol import Prediction
from tfm.parallel import sharding
from tfm.spec import parse
from tfm.studies import matching
from tfm.studies.study import STEPS, Study
from tfm.training.optimizer import path_name


# What cuts the same texts into other rows.
ROWS = (
  'data.tokenizer',
  'data.source_tokenizer',
  'data.length',
  'data.packing',
  'training.batch_size',
  'training.gradient_accumulation',
)
# Metrics that depend on what a token is.
PER_TOKEN = 'loss', 'perplexity', 'accuracy'
# What a step of each arm's config takes: name → config to name → seconds.
Seconds = Callable[[Mapping[str, ConfigDict]], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Arm:
  """One side of a comparison, ready to train.

  Attributes:
    name: in the study; changes: the fields that it changes, by their paths.
    config: complete, matched and resolved, but for the seed.
    matched: path → (value before, value after) of what matching changed.
    parameters: how many; flops: of training, per token; memory: bytes of one run in training, of which the
      activations are an estimate.
  """

  name: str
  changes: Mapping[str, Any]
  config: ConfigDict
  matched: Mapping[str, tuple[int, int]]
  parameters: int
  flops: float
  memory: int

  @property
  def tokens(self) -> int:
    """Of the whole training, padding among them."""
    return tokens(self.config)


def plan(
  study: Study, names: Collection[str] | None = None, seconds: Seconds | None = None
) -> dict[str, Arm]:
  """The arms of a study, by name, the base first.

  Args:
    names: of those that are wanted, to which those that they are compared with are added; None: all.
    seconds: of one step of each config, measured, by the arm; for match='time'.

  Raises:
    ValueError: for a config that cannot be run, or an arm that cannot be matched, naming the arm.
  """
  base, made, target = complete(study.config), {}, None
  names = (
    [*study.arms]
    if names is None
    else [study.base, *names, *(study.against.get(name, study.base) for name in names)]
  )
  found = {}
  for name in sorted(filter({*names}.__contains__, study.arms), key=lambda name: name != study.base):
    with naming(name):
      found[name] = changed(base, study.arms[name], study.seeds)
  for name, config in found.items():
    with naming(name):
      refuse_other_evaluation(study.metric, config, found[study.against.get(name, study.base)])
  # How long a step takes does not depend on how many there are.
  times = seconds(found) if study.match == 'time' else {}
  for name, config in found.items():
    with naming(name):
      matched = {}
      if study.match:
        quantity = quantities(times.get(name))[study.match]
        if target is None:
          target = quantity(config)
        else:
          config, matched = to_target(study, base, study.arms[name], quantity, target)
      made[name] = cost(name, study.arms[name], config, matched, study.seeds)
  return made


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
  """Says which arm it is that cannot be."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'the arm {name!r}: {error}') from error


def select(arms: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
  """Some of the arms, by name.

  Raises:
    ValueError: for a name that is no arm's.
  """
  for name in names or ():
    if name not in arms:
      raise ValueError(f'--arms names {name!r}, which the study does not have; {suggest(name, arms)}')
  return {name: arm for name, arm in arms.items() if not names or name in names}


def changed(base: ConfigDict, changes: Mapping[str, Any], seeds: int) -> ConfigDict:
  """The resolved config of an arm.

  Raises:
    ValueError: for a field that is not there, or a config that cannot be run.
  """
  config = base.copy_and_resolve_references()
  for path, value in changes.items():
    assign(config, path, value)
  config = resolve_config(config)
  validate_run(Experiment(config), devices(config, seeds))
  return config


def refuse_other_evaluation(metric: str, config: ConfigDict, base: ConfigDict) -> None:
  """Refuses an arm that is not evaluated on the texts of the arm that it is compared with, or in another unit.

  Of a whole split that is cut into other rows all tokens are evaluated, of some of its batches others.
  """
  ours, theirs = (dict(leaves(one)) for one in (config, base))
  for field in ('data.source', 'training.evaluation_batches'):
    require(
      ours[field] == theirs[field],
      f'{field}={ours[field]!r} evaluates other texts than {theirs[field]!r} of the arm that it '
      'is compared with; leave it as it is there, or compare it with an arm like it by against=',
    )
  # The length of an image is how many patches it has.
  images, batches = bool(Experiment(config).source.image_shape), config.training.evaluation_batches
  for field in ROWS:
    require(
      not batches or ours[field] == theirs[field] or images and field == 'data.length',
      f'{field}={ours[field]!r} makes other rows than {theirs[field]!r} of the arm that it is compared with, and '
      f'training.evaluation_batches={batches} are of other texts; 0 evaluates all of them',
    )
  whole = images or all(parse(one.data.packing).name == 'concat' for one in (config, base))
  require(
    whole or config.data.length == base.data.length,
    f'data.length={config.data.length} with data.packing={config.data.packing!r} may cut or leave out other texts than '
    f'{base.data.length} of the arm that it is compared with; leave it as it is there',
  )
  per_token = isinstance(Experiment(config).objective, Prediction) and metric.rpartition('_')[2] in PER_TOKEN
  require(
    not per_token or config.data.tokenizer == base.data.tokenizer,
    f'data.tokenizer={config.data.tokenizer!r} makes other tokens than {base.data.tokenizer!r} of the arm that it is compared '
    f"with, and metric={metric!r} is per token; 'bits_per_byte' would do",
  )


def devices(config: ConfigDict, seeds: int) -> int:
  """Over how many a run is laid: seeds that train together have one each."""
  return 1 if seeds > 1 and all(size in (1, -1) for size in config.mesh.values()) else jax.device_count()


def to_target(
  study: Study,
  base: ConfigDict,
  changes: Mapping[str, Any],
  quantity: Callable[[ConfigDict], float],
  target: float,
) -> tuple[ConfigDict, dict[str, tuple[int, int]]]:
  """The config of an arm with as much of the quantity as the base, and what had to be changed for it.

  Raises:
    ValueError: if it cannot be had within 2 %.
  """

  def with_free(value):
    return changed(base, dict(changes) | {study.free: value}, study.seeds)

  config = changed(base, changes, study.seeds)
  before = dict(leaves(config))[study.free]
  if abs(quantity(config) - target) <= matching.EQUAL * target:
    return config, {}
  try:
    value, _ = matching.match(target, lambda value: quantity(with_free(value)), before, multiple(study))
  except ValueError as error:
    raise ValueError(f'match={study.match!r} by free={study.free!r} cannot be had: {error}') from error
  return with_free(value), {study.free: (before, value)}


def multiple(study: Study) -> int:
  """Steps are counted one by one."""
  return 1 if study.free == STEPS else study.multiple


def quantities(seconds: float | None) -> dict[str, Callable[[ConfigDict], float]]:
  """How much of each of `matching.QUANTITIES` the whole training of a config has, whose steps take some seconds."""
  return dict(
    parameters=lambda config: parameters(model_of(config), config),
    flops=lambda config: (
      flops.training_flops_per_token(model_of(config), config.data.length) * tokens(config)
    ),
    tokens=tokens,
    time=lambda config: seconds * config.training.steps,
  )


def tokens(config: ConfigDict) -> int:
  """Tokens that a training reads, padding among them."""
  return config.training.steps * config.training.batch_size * config.data.length


def model_of(config: ConfigDict):
  """The model, for the vocabularies of its data."""
  vocab, source_vocab = estimate.vocabulary_sizes(Experiment(config))
  return Experiment(config).build_model(vocab, source_vocab=source_vocab)


def validated(config: ConfigDict) -> list[str]:
  """The metrics of its validation."""
  objective, model, tokenizer = Experiment(config).objective, model_of(config), Experiment(config).tokenizer
  sums = jax.eval_shape(
    lambda params, batch: objective(model, params, batch, None)[1],
    nn.unbox(estimate.abstract_state(Experiment(config), model).params),
    estimate.abstract_batch(objective.padding(config.data.length), 1),
  )
  total = {name: np.zeros(x.shape) for name, x in sums.items()}
  return [*objective.summary(total, int(tokenizer is not None and tokenizer.is_lossless))]


def parameters(model, config: ConfigDict) -> int:
  """How many numbers it learns: without those that are frozen."""
  trains, params = (
    Experiment(config).build_optimizer()[0].trains,
    nn.unbox(estimate.abstract_state(Experiment(config), model).params),
  )
  return sum(x.size for path, x in jax.tree_util.tree_leaves_with_path(params) if trains(path_name(path)))


def cost(
  name: str,
  changes: Mapping[str, Any],
  config: ConfigDict,
  matched: Mapping[str, tuple[int, int]],
  seeds: int,
) -> Arm:
  """What an arm will cost."""
  mesh, rules = estimate.abstract_mesh(config, devices(config, seeds)), sharding.parse_rules(config.rules)
  model, (vocab, source_vocab) = model_of(config), estimate.vocabulary_sizes(Experiment(config))
  boxed = estimate.abstract_state(Experiment(config), model)
  kinds = estimate.memory_by_kind(Experiment(config), vocab, source_vocab, boxed, mesh, rules)
  return Arm(
    name,
    dict(changes),
    config,
    dict(matched),
    parameters(model, config),
    flops.training_flops_per_token(model, config.data.length),
    sum(size for _, size, _ in kinds),
  )


def table(study: Study, arms: Mapping[str, Arm], seconds: Mapping[str, float]) -> Table:
  """The plan, for people: a row for each arm.

  Args:
    seconds: of all seeds of an arm, estimated, by name; where known.
  """
  made = Table(title=study.question, title_justify='left', box=box.SIMPLE)
  matched = any(arm.matched for arm in arms.values())
  for column in ('arm', 'changes', *(['matched by'] if matched else [])):
    made.add_column(column, overflow='fold')
  for column in ('parameters', 'FLOPs/token', 'tokens', 'memory', 'time, by FLOPs'):
    made.add_column(column, justify='right', no_wrap=True)
  for name, arm in arms.items():
    changes = (
      '\n'.join(f'{path.rpartition(".")[2]}={value!r}' for path, value in arm.changes.items()) or 'the base'
    )
    by = '\n'.join(f'{path.rpartition(".")[2]} {a:,} → {b:,}' for path, (a, b) in arm.matched.items())
    made.add_row(
      name,
      changes,
      *([by] if matched else []),
      short(arm.parameters),
      short(arm.flops),
      short(arm.tokens),
      f'{arm.memory / 2**20:,.0f} MiB',
      duration(seconds[name]) if name in seconds else '',
    )
  if seconds:
    made.caption = (
      f"in all {duration(sum(seconds.values()))}: steps alone, of which another arm's FLOPs may take longer than the "
      "base's; compiling, validation and measures come on top"
    )
    made.caption_justify = 'left'
  return made


def duration(seconds: float) -> str:
  """`1:02:03`."""
  return str(datetime.timedelta(seconds=round(seconds)))


def short(number: float) -> str:
  """`1.23 M`."""
  for unit in ('', ' k', ' M', ' G', ' T'):
    if number < 1000:
      break
    number /= 1000
  return f'{number:.4g}{unit}'
