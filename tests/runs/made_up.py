"""The files of runs that were not trained."""

from tfm.config.load import to_json
from tfm.training.metrics import MetricsLog


def write_run(workdir, config, rows):
  """The files of a run with these rows (step, split, values) of metrics."""
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text(to_json(config))
  log = MetricsLog(workdir, 0)
  for step, split, values in rows:
    log.write(step, split, values)
  log.close()
  return workdir
