"""MLflow, with a server or a local store."""

import dataclasses
import os
import time

from tfm.errors import importing_extra, require
from tfm.training.sinks.protocol import Sink, Writer


TAG = 'tfm.run_id'
# The store's limits: parameters of one request, and characters of a parameter.
PARAMETERS, CHARACTERS = 100, 6000


@dataclasses.dataclass(frozen=True)
class Mlflow(Sink):
  """Writes metrics, and the config as parameters, to an MLflow store.

  A run that resumes continues the MLflow run with its identifier as the tag `tfm.run_id`.

  Attributes:
    uri: the store: 'http://HOST:PORT', or local, 'sqlite:///runs/mlflow.db'; None: the environment variable
      MLFLOW_TRACKING_URI.
    experiment: where the run appears.
    name: of the run; None: the last two parts of its folder.

  Raises (from `import_package`):
    ValueError: if no store is named.
  """

  uri: str | None = None
  experiment: str = 'tfm'
  name: str | None = None

  def import_package(self):
    require(
      bool(self.uri or os.environ.get('MLFLOW_TRACKING_URI')),
      "mlflow has no store; use mlflow('sqlite:///runs/mlflow.db') or set MLFLOW_TRACKING_URI",
    )
    with importing_extra('mlflow'):
      import mlflow
    return mlflow

  def open(self, run):
    mlflow = self.import_package()
    client = mlflow.MlflowClient(tracking_uri=self.uri)
    experiment = client.get_experiment_by_name(self.experiment)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(self.experiment)
    if found := client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.id}'"):
      run_id = found[0].info.run_id
      client.update_run(run_id, status='RUNNING')
    else:
      started = client.create_run(experiment_id, run_name=self.name or run.name, tags={TAG: run.id})
      run_id = started.info.run_id
      parameters = [
        mlflow.entities.Param(path, str(value)[:CHARACTERS]) for path, value in run.config.items()
      ]
      for first in range(0, len(parameters), PARAMETERS):
        client.log_batch(run_id, params=parameters[first : first + PARAMETERS])
    return MlflowWriter(client, run_id, mlflow.entities.Metric)


class MlflowWriter(Writer):
  """Logs rows of an MLflow run."""

  def __init__(self, client, run_id, metric):
    self._client, self._run_id, self._metric = client, run_id, metric

  def write(self, step, values):
    milliseconds = int(time.time() * 1000)
    rows = [self._metric(name, value, milliseconds, step) for name, value in values.items()]
    self._client.log_batch(self._run_id, metrics=rows)

  def close(self):
    self._client.set_terminated(self._run_id)
