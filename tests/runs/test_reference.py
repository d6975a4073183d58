"""Runs whose objective compares with the frozen model of another run."""

import json
import shutil

import jax
import numpy as np
import pytest

from tests.runs.test_resume import everything
from tfm.models import flops
from tfm.runs import load as runs
from tfm.runs import train as training
from tfm.runs.init_from import leaves_by_path
from tfm.runs.reference import open_reference
from tfm.runs.run_dir import RunDir
from tfm.studies.arms import plan_arms
from tfm.studies.study import Study
from tfm.training.metrics import read


@pytest.fixture(scope='module')
def teacher(tiny_run):
  """The directory of a run of two checkpoints, steps 3 and 6."""
  return tiny_run


def student(tiny, teacher, **fields):
  return tiny(**{'objective': f'distillation({str(teacher)!r}, alpha=0.9)', 'model.width': 16} | fields)


def prepare(config, workdir):
  return training.prepare([RunDir.from_config(config, config.seed, str(workdir))])


@pytest.mark.slow
def test_a_resume_reads_the_same_teacher_which_no_checkpoint_has(tiny, teacher, tmp_path):
  copy = tmp_path / 'teacher'
  shutil.copytree(teacher, copy)
  config = student(tiny, copy)
  training.train(config, str(tmp_path / 'whole'))
  rows = [row for row in read(tmp_path / 'whole' / 'metrics.jsonl') if row['split'] == 'train']
  assert all(row['distillation'] > 0 for row in rows)
  parts, metadata = everything(tmp_path / 'whole')
  assert metadata['reference'] == dict(workdir=str(copy), step=6)
  own = jax.tree.leaves(runs.load(str(tmp_path / 'whole')).params)
  saved = [leaf for path, leaf in parts if path[0].idx == 0]
  assert sorted(x.shape for x in saved) == sorted(x.shape for x in own)

  shutil.copytree(tmp_path / 'whole', tmp_path / 'part')
  shutil.rmtree(tmp_path / 'part' / 'checkpoints' / '6')
  more = tiny(**{'training.steps': 9})
  training.train(more, str(tmp_path / 'longer'))  # a later step of the teacher appears
  shutil.copytree(tmp_path / 'longer' / 'checkpoints' / '9', copy / 'checkpoints' / '9')
  training.train(config, str(tmp_path / 'part'))
  resumed, _ = everything(tmp_path / 'part')
  for (path, a), (_, b) in zip(parts, resumed, strict=True):
    np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))

  shutil.rmtree(copy)
  assert np.isfinite(runs.evaluate(runs.load(str(tmp_path / 'whole')), 'test').metrics['loss'])
  shutil.rmtree(tmp_path / 'part' / 'checkpoints' / '6')
  with pytest.raises(ValueError, match=r'config\.objective: .*teacher.* holds no run'):
    training.train(config, str(tmp_path / 'part'))


def test_its_parameters_are_sharded_like_those_that_are_trained(tiny, teacher, tmp_path):
  config = student(tiny, teacher, **{f'mesh.{axis}': 2 for axis in ('data', 'fsdp', 'tensor')})
  prepared = prepare(config, tmp_path / 'run')
  sharded = training.shard(prepared)
  reference = prepared.reference.restore(sharded.runs.mesh, sharded.rules)
  ours, theirs = (leaves_by_path(tree) for tree in (sharded.shardings.params, reference.params))
  assert {name: s.spec for name, s in ours.items()} == {name: x.sharding.spec for name, x in theirs.items()}
  assert any(any(x.sharding.spec) for x in theirs.values())
  one = runs.load(str(teacher))
  for a, b in zip(jax.tree.leaves(reference.params), jax.tree.leaves(one.params), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'data.tokenizer': 'char'}, 'has the tokenizer bytes-.* and this one char-'),
    ({'model.vocab_multiple': 100}, 'rows 384, and this one 300'),
    ({'mesh.stage': 2}, 'config.mesh.stage=2 divides the layers'),
    (
      {'model.architecture': 'encoder', 'objective': 'distillation({}, objective="masked_lm")'},
      'has the architecture decoder, and this one encoder',
    ),
    ({'objective': 'distillation({}, cosine=1.0)'}, 'width of the student is 16 and that of the teacher 32'),
    (
      {'objective': 'distillation({}, hidden=1.0)', 'model.width': 32, 'model.layers': 3},
      "3 does not divide the teacher's 2 layers",
    ),
    ({'objective': 'distillation("nowhere")'}, "config.objective: 'nowhere' holds no run"),
    (
      {'training.recurrence_length': 16},
      'recurrence_length=16 reads rows in segments, which config.objective=.* does not support',
    ),
  ],
)
def test_a_reference_that_does_not_fit_is_refused(tiny, teacher, fields, message, tmp_path):
  fields = {name: x.format(repr(str(teacher))) if name == 'objective' else x for name, x in fields.items()}
  with pytest.raises(ValueError, match=message):
    prepare(student(tiny, teacher, **fields), tmp_path / 'run')


@pytest.mark.slow
def test_rows_longer_than_its_positions_are_refused(tiny, tmp_path):
  training.train(tiny(**{'model.position': 'learned'}), str(tmp_path / 'teacher'))
  with pytest.raises(ValueError, match='config.data.length=64 exceeds the 32 positions of Learned'):
    prepare(student(tiny, tmp_path / 'teacher', **{'data.length': 64}), tmp_path / 'run')


@pytest.mark.slow
def test_an_ensemble_has_the_run_alone(tiny, teacher, tmp_path):
  config = student(tiny, teacher)
  run_dirs = [RunDir.from_config(config, seed, str(tmp_path / f'seed{seed}')) for seed in (0, 1)]
  training.train_ensemble(run_dirs)
  training.train(config, str(tmp_path / 'alone'))
  together, alone = (
    [json.loads(line) for line in (tmp_path / name / 'metrics.jsonl').read_text('utf-8').splitlines()]
    for name in ('seed0', 'alone')
  )
  pairs = [(a, b) for a, b in zip(together, alone, strict=True) if a['split'] == 'train']
  np.testing.assert_allclose(
    [a['distillation'] for a, _ in pairs], [b['distillation'] for _, b in pairs], rtol=1e-4
  )


def test_a_plan_counts_the_teacher(tiny, teacher):
  """Its parameters and its forward pass, whose activations no gradient keeps."""
  taught = Study(
    question='Does a teacher help?',
    config=tiny(**{'model.width': 16}),
    base='alone',
    arms={'alone': {}, 'taught': {'objective': f'distillation({str(teacher)!r})'}},
  )
  arms = plan_arms(taught)
  alone, taught = (arms[name] for name in taught.arms)
  opened = open_reference(taught.experiment)
  params = sum(x.size for x in jax.tree.leaves(opened.abstract.params))
  assert taught.parameters == alone.parameters
  assert taught.flops == alone.flops + flops.per_token(opened.model, 32).forward
  assert taught.memory > alone.memory + 4 * params
