"""What is tried, and what is not."""

import types

import pytest

from tfm.analysis import mesh_search
from tfm.analysis.lowering import PlanRequest
from tfm.analysis.mesh_search import Candidate
from tfm.analysis.roofline import Bound
from tfm.config.assemble import Experiment


def test_factorisations():
  assert set(mesh_search.factorizations(12, 2)) == {(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)}
  assert len(list(mesh_search.factorizations(8, 3))) == 10


@pytest.fixture
def plan_request(tiny):
  return PlanRequest(Experiment(tiny(**{'training.batch_size': 8})), 256, 0)


@pytest.mark.slow
def test_only_what_divides(plan_request):
  """Four heads cannot be cut into eight, and eight rows are at most eight parts of microbatches."""
  found = mesh_search.list_candidates(plan_request, 8, 1, ('data', 'fsdp', 'tensor'), None)
  assert found and len(found) == len(set(found))
  for one in found:
    sizes = dict(one.mesh)
    assert sizes['tensor'] <= 4 and sizes['data'] * sizes['fsdp'] * one.accumulation <= 8
  assert {one.remat for one in found} == set(mesh_search.POLICIES)
  assert dict(found[0].mesh) == dict(data=1, fsdp=8, tensor=1)


@pytest.mark.slow
def test_only_what_holds_the_state(plan_request):
  every = mesh_search.list_candidates(plan_request, 8, 1, ('data', 'fsdp'), None)
  few = mesh_search.list_candidates(plan_request, 8, 1, ('data', 'fsdp'), capacity=60_000)
  assert set(few) < set(every) and {dict(one.mesh)['fsdp'] for one in few} == {8}
  assert mesh_search.list_candidates(plan_request, 8, 1, ('data', 'fsdp'), capacity=1000) == []


def test_slices_divide_data(plan_request):
  assert {
    dict(one.mesh)['data'] for one in mesh_search.list_candidates(plan_request, 8, 4, ('data', 'fsdp'), None)
  } == {4, 8}


def test_a_candidate_as_flags_is_a_config(plan_request):
  one = Candidate((('data', 2), ('tensor', 4)), 'dots', 2)
  config = one.config(plan_request.config)
  assert config.mesh.to_dict() == dict.fromkeys(plan_request.config.mesh, 1) | dict(data=2, tensor=4)
  assert str(one) == (
    '--config.mesh.data=2 --config.mesh.tensor=4 --config.model.remat=dots '
    '--config.training.gradient_accumulation=2'
  )


def planned(fits, seconds=1.0):
  return types.SimpleNamespace(memory=types.SimpleNamespace(fits=fits), bound=Bound(seconds, 0, 0, 0, {}))


def test_what_is_needless():
  mesh, other = (('data', 8),), (('data', 4),)
  fit = [(Candidate(mesh, 'dots', 2), True)]
  assert mesh_search.is_redundant(Candidate(mesh, 'full', 2), fit) and mesh_search.is_redundant(
    Candidate(mesh, 'dots', 4), fit
  )
  assert not mesh_search.is_redundant(Candidate(mesh, 'none', 2), fit) and not mesh_search.is_redundant(
    Candidate(mesh, 'full', 1), fit
  )
  assert not mesh_search.is_redundant(Candidate(other, 'full', 2), fit)
  full = [(Candidate(mesh, 'dots', 2), False)]
  assert mesh_search.is_redundant(Candidate(mesh, 'none', 2), full) and mesh_search.is_redundant(
    Candidate(mesh, 'dots', 1), full
  )
  assert not mesh_search.is_redundant(Candidate(mesh, 'full', 2), full)
  unknown = [(Candidate(mesh, 'dots', 2), None)]
  assert not mesh_search.is_redundant(Candidate(mesh, 'full', 4), unknown)


def test_the_best_fits():
  tried = [
    (Candidate((), 'none', 1), planned(False, 1)),
    (Candidate((), 'dots', 1), planned(True, 3)),
    (Candidate((), 'full', 1), planned(True, 2)),
  ]
  assert mesh_search.best_plan(tried)[0].remat == 'full' and mesh_search.best_plan(tried[:1]) is None
