"""A config made into everything that trains, alone or as several seeds together."""

import contextlib
import datetime
import functools
import importlib.metadata
import logging
import pathlib
import platform
import time
from collections.abc import Iterator, Sequence

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.config import validate as check
from tfm.config.assemble import Experiment
from tfm.config.schema import leaves
from tfm.data import cache, device, pipeline
from tfm.data.pipeline import ImageData, TextData
from tfm.errors import require
from tfm.models import flops
from tfm.parallel import chips, processes, sharding
from tfm.parallel import mesh as meshes
from tfm.runs.init_from import make_model, start_from, tokenizers
from tfm.runs.load import build_evaluate_fn
from tfm.runs.run_dir import RunDir
from tfm.shapes import PyTree
from tfm.training import checkpoint, ensemble, loop
from tfm.training import state as states
from tfm.training.goodput import TIERS, Goodput
from tfm.training.local_checkpoints import LocalCheckpoints
from tfm.training.metrics import MetricsLog, NullMetricsLog
from tfm.training.progress import Line, print_status
from tfm.training.report import Report
from tfm.training.step import jitted, train_step


_log = logging.getLogger(__name__)

# What runs of one compiled step may differ in.
TOGETHER = 'seed', 'optimizer.learning_rate'


def train(config: ConfigDict, workdir: str) -> None:
  """Trains a resolved config in `workdir`, from its last checkpoint if there is one.

  Raises:
    ValueError: before anything compiles, for a config that cannot be run or that differs from the
      checkpoint's in a field that matters.
    Diverged: if a metric stops being finite.
  """
  train_ensemble([RunDir.from_config(config, config.seed, workdir)])


def train_ensemble(places: Sequence[RunDir]) -> Report:
  """Trains several runs in one compiled step, whose configs differ in `TOGETHER` alone.

  Every run becomes what it would alone: its parameters, batches and files are those of `train`, up to the order in which
  its sums are added. A run that diverges stops, and the others go on. On several devices each has some of the runs.

  Returns:
    What was said, with the runs that diverged, numbered in the order of `places`.

  Raises:
    ValueError, Diverged: as `train`; the latter if no run is left. For several runs also for configs that differ
      otherwise, a mesh, several processes, or batches of several shapes.
  """
  for place in places:
    check.folder(place.workdir)
  begun, config, several = time.perf_counter(), places[0].config, len(places) > 1
  training, seeds = config.training, [place.config.seed for place in places]
  fields = {f'config.{path}': value for path, value in leaves(config)}
  processes.require_equal({'which fields --config has': [*fields]})
  processes.require_equal(
    fields
    | {f'what --workdir={places[0].workdir} holds': [place.list_checkpoint_names() for place in places]}
  )
  for place in places:
    refuse_another(config, place.config)
  if several:
    check.seeds(Experiment(config), jax.process_count())
  check.run(Experiment(config), 1 if several else jax.device_count())
  check.made(Experiment(config))
  objective, packing = Experiment(config).objective, Experiment(config).packing
  optimizer, rate = Experiment(config).build_optimizer()
  peaks = np.asarray([place.config.optimizer.learning_rate for place in places], np.float32)
  source, tokenizer, source_tokenizer = (
    Experiment(config).source,
    Experiment(config).tokenizer,
    Experiment(config).source_tokenizer,
  )
  # A kill may have come between the saves of two runs.
  last = max(set.intersection(*(place.saved_steps() for place in places)), default=0)
  for place in places:
    require(
      place.saved_steps() != {0},
      f'--workdir={place.workdir} was made by tfm import, and training would write over it; train in '
      f'another with --config.init_from={place.workdir}',
    )
  near = (
    LocalCheckpoints(training.local_checkpoint_dir, places[0].workdir)
    if training.local_checkpoint_dir
    else None
  )
  closer = near and near.newer(last, config)
  saved = (
    [places[0].require_same_config(near.run(closer))]
    if closer
    else [place.checkpoint_metadata(last) for place in places]
    if last
    else []
  )
  last = closer or last

  # What is frozen stays with the run that it came from, and is read there each time.
  start = start_from(config) if config.init_from and (Experiment(config).frozen_pattern or not last) else None
  if config.init_from:
    tokenizer, source_tokenizer = tokenizers(saved[0]) if last else (start.tokenizer, start.source_tokenizer)
  with processes.main_process_first():
    data = pipeline.open_data(source, tokenizer, cache.directory(), source_tokenizer)
    for split in ('train', 'validation') if jax.process_count() > 1 else ():
      data.tokens(split)  # encoded by one of them, too
  carried = dict(corpus=data.corpus.hash) | {
    name: one.state() if one else None
    for name, one in dict(tokenizer=data.tokenizer, source_tokenizer=data.source_tokenizer).items()
  }
  if published := saved[0].get('published') if last else start and start.published:
    carried['published'] = published
  processes.require_equal(
    {f'what config.data.source={config.data.source!r} holds, or the tokenizer,': carried}
  )
  for place, before in zip(places, saved):
    place.require_same_data(before, carried)
  model = make_model(config, data.tokenizer, data.source_tokenizer)
  mesh = ensemble.make_mesh(len(places), jax.devices()) if several else meshes.from_config(config)
  whole = ensemble.data_mesh(mesh) if several else mesh
  rules = sharding.parse_rules(config.rules)
  make = states.init(
    model,
    optimizer,
    training.batch_size,
    config.data.length,
    config.model.dtype == 'float16',
    Experiment(config).lora,
    training.skip_spikes > 0,
  )
  boxed = states.abstract_state(make)
  where = states.state_shardings(boxed, mesh, rules, tuple(check.needs(Experiment(config))))
  batch_sharding = sharding.batch_sharding(mesh, rules)

  def batches_of(seed):
    rows = objective.rows(packing, data.tokens('train'), config.data.length, seed, data.tokenizer)
    return pipeline.train_iterator(
      rows,
      training.batch_size,
      *device.process_rows(batch_sharding, training.batch_size),
      threads=config.data.reader_threads,
    )

  iterators = [batches_of(seed) for seed in seeds]

  with contextlib.ExitStack() as stack:
    for place in places:
      place.write_config()
    # Of several, two are kept: a kill may come between the saves of two runs.
    keep = max(training.keep_checkpoints, 2) if several else training.keep_checkpoints
    checkpoints = [
      stack.enter_context(contextlib.closing(checkpoint.Checkpoints(place.workdir, keep))) for place in places
    ]
    if near:
      stack.enter_context(contextlib.closing(near))
      if not closer:
        near.clear()
    if last:
      target = checkpoint.restore_target(nn.unbox(boxed), where)
      born = [
        start.completed(kept.state(last, start.part(target, optimizer.trains)), target)
        if start
        else kept.state(last, target)
        for kept in ([near] if closer else checkpoints)
      ]
      for kept, iterator, before in zip(checkpoints, iterators, saved):
        iterator.set_state(before['data'])
        kept.forget(last)
    else:
      born = states.init_states(make, seeds, where, mesh, rules)
      if start:
        born = [state.replace(params=start.adopted(state.params, optimizer.trains)) for state in born]
    if near:
      near.require_whole(born[0])
    said = introduction(config, data, boxed.params, mesh, last)
    print_status(said)
    logs = [
      stack.enter_context(
        contextlib.closing(
          MetricsLog(place.workdir, last) if processes.is_main_process() else NullMetricsLog()
        )
      )
      for place in places
    ]
    for place in places if processes.is_main_process() else ():
      stack.enter_context(heard(place.workdir, said))

    line = Line(
      last, training.steps, flops.training_flops_per_token(model, config.data.length), chips.peak_flops()
    )
    goodput = Goodput([place.workdir for place in places] if processes.is_main_process() else [], last, begun)
    report = Report(logs, line, goodput, last)
    with sharding.context(mesh, rules):
      if several:

        def one(state, batch, peak):
          return train_step(
            model,
            objective,
            *Experiment(config).build_optimizer(peak),
            training.gradient_accumulation,
            training.skip_spikes,
          )(state, batch)

        state, split = ensemble.stack_states(born, mesh), ensemble.split_states(len(places), whole)
        step = jitted(ensemble.ensemble_step(one, mesh, peaks), ensemble.stacked_sharding(mesh))
        batches = ensemble.prefetch(iterators, mesh)
      else:
        (state,), split = born, lambda state: (state,)
        step = jitted(
          train_step(model, objective, optimizer, rate, training.gradient_accumulation, training.skip_spikes),
          where,
        )
        batches = device.prefetch(*iterators, batch_sharding, training.batch_size)
      del born

      def into(checkpoints, run, state, position, loss):
        checkpoints[run].save(
          start.part(state, optimizer.trains) if start else state,
          dict(carried, config=places[run].config.to_dict(), data=position),
          loss,
        )

      tiers = dict(zip(TIERS, (checkpoints, [near]) if near else (checkpoints,)))

      evaluate = build_evaluate_fn(
        config, model, data, sharding.batch_sharding(whole, rules), 'validation', training.evaluation_batches
      )

      def validate(params):
        with sharding.context(whole, rules):
          return evaluate(params)

      with line:
        loop.fit(
          state,
          batches,
          step,
          validate,
          {tier: functools.partial(into, kept) for tier, kept in tiers.items()},
          loop.Cadence(
            training.steps,
            training.log_every,
            training.evaluate_every,
            training.profile if processes.is_main_process() else 0,
            dict(zip(TIERS, Experiment(config).save_intervals)),
          ),
          report,
          str(places[0].workdir / 'profile'),
          split,
        )
        with goodput.spent('saving'):
          for kept in checkpoints:
            kept.wait()
          if near:
            near.clear()
        goodput.end()
      _log.info('%s', goodput)
  for place in places:
    print_status(
      f'{place.workdir}: config.json, log.txt, metrics.jsonl, checkpoints/ and the loss curves, curves.png'
    )
  return report


def refuse_another(one: ConfigDict, other: ConfigDict) -> None:
  """Refuses to train two runs in one step whose configs differ in more than `TOGETHER`."""
  one, other = (dict(leaves(config)) for config in (one, other))
  for path in one | other:
    require(
      path in TOGETHER or one.get(path) == other.get(path),
      f'config.{path} is {one.get(path)!r} of one run and {other.get(path)!r} of another, and runs that train together '
      f'may differ in {" and ".join(TOGETHER)} alone; train them one after another',
    )


def introduction(
  config: ConfigDict, data: TextData | ImageData, params: PyTree, mesh: Mesh, last: int
) -> str:
  """What is about to be trained, for the log."""
  versions = ' '.join(f'{name} {importlib.metadata.version(name)}' for name in ('jax', 'flax', 'optax'))
  count = sum(x.size for x in jax.tree.leaves(nn.unbox(params)))
  count_of = f'{jax.process_count()} processes, ' if jax.process_count() > 1 else ''
  plan = check.schedule(config, mesh.shape)
  return (
    f'{data}\n'
    f'model: {count:,} parameters, kernel {config.model.kernel}, {config.model.dtype}\n'
    f'devices: {count_of}{mesh.size} × {jax.devices()[0].device_kind}, mesh {dict(mesh.shape)}; {versions}, '
    f'Python {platform.python_version()}'
    + (f'\npipeline: {plan}' if plan else '')
    + (f'\nresuming from step {last}' if last else '')
  )


@contextlib.contextmanager
def heard(workdir: pathlib.Path, said: str) -> Iterator[None]:
  """Writes what is said into the run's log.txt, beginning with `said`."""
  with (workdir / 'log.txt').open('a') as file:
    file.write(f'\n{datetime.datetime.now():%Y-%m-%d %H:%M:%S}\n{said}\n')
  log, file = logging.getLogger('tfm'), logging.FileHandler(workdir / 'log.txt')
  log.addHandler(file)
  try:
    yield
  finally:
    log.removeHandler(file)
    file.close()
