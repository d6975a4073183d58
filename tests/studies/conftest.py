"""A small study that several files of tests run."""

import pytest

from tfm.analysis import estimate
from tfm.evaluation.cost import StepCost


STUDY = """
from ml_collections import ConfigDict
from tfm.studies.study import Study

RATES = dict(rates=(1e-3, 3e-3), rungs=(1e-3, 3e-3, 1e-2, 3e-2))

def get_study(arg=''):
  config = ConfigDict()
  config.data = dict(source="text({book!r})", tokenizer='bytes', length=16)
  config.model = dict(layers=1, width=16, heads=2, scan=False)
  config.optimizer = dict(learning_rate=3e-3, warmup=2)
  config.training = dict(steps=4, batch_size=8, log_every=1, evaluate_every=2, evaluation_batches=2)
  arms = {{'rope': {{'model.position': 'rope'}}, 'learned': {{'model.position': 'learned'}}}}
  if 'ill' in arg:
    arms['ill'] = {{'model.initializer': 'normal(1.0)', 'model.score': 'dot(scale=3e38)'}}
  if 'twice' in arg:
    arms['twice'] = {{'optimizer.learning_rate': 6e-3}}
  return Study(question='Which?', config=config, base='rope', arms=arms, seeds=2,
               learning_rates=RATES.get(arg, ()), rungs=(0.5,) if arg == 'rungs' else (),
               measures=('lengths((16, 32), targets=64)',))
"""


@pytest.fixture(scope='module')
def no_clock():
  """A plan's times are measured, which takes some."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(estimate, 'measure_step', lambda config, seeds: StepCost(0.01, 0, 0))
    yield


@pytest.fixture(scope='module')
def file(book, no_clock, tmp_path_factory):
  """A study of two arms; with an argument of more, or with learning rates."""
  path = tmp_path_factory.mktemp('study') / 'which.py'
  path.write_text(STUDY.format(book=str(book)))
  return str(path)
