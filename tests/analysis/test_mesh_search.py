"""What is tried, and what is not."""

import types

import jax
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
  found = mesh_search.list_candidates(plan_request, jax.devices(), 1, ('data', 'fsdp', 'tensor'), None)
  assert found and len(found) == len(set(found))
  for one in found:
    sizes = dict(one.mesh)
    assert sizes['tensor'] <= 4 and sizes['data'] * sizes['fsdp'] * one.accumulation <= 8
  assert {one.remat for one in found} == set(mesh_search.POLICIES)
  assert dict(found[0].mesh) == dict(data=1, fsdp=8, tensor=1)


@pytest.mark.slow
def test_only_what_holds_the_state(plan_request):
  every = mesh_search.list_candidates(plan_request, jax.devices(), 1, ('data', 'fsdp'), None)
  few = mesh_search.list_candidates(plan_request, jax.devices(), 1, ('data', 'fsdp'), capacity=60_000)
  assert set(few) < set(every) and {dict(one.mesh)['fsdp'] for one in few} == {8}
  assert mesh_search.list_candidates(plan_request, jax.devices(), 1, ('data', 'fsdp'), capacity=1000) == []


def test_slices_divide_data(plan_request):
  assert {
    dict(one.mesh)['data']
    for one in mesh_search.list_candidates(plan_request, jax.devices(), 4, ('data', 'fsdp'), None)
  } == {4, 8}


def test_a_candidate_as_flags_is_a_config(plan_request):
  one = Candidate((('data', 2), ('tensor', 4)), 'dots', 2, 'auto')
  config = one.config(plan_request.config)
  assert config.mesh.to_dict() == dict.fromkeys(plan_request.config.mesh, 1) | dict(data=2, tensor=4)
  assert str(one) == (
    '--config.mesh.data=2 --config.mesh.tensor=4 --config.model.remat=dots '
    '--config.training.gradient_accumulation=2 --config.compiler.flags=auto'
  )


def test_what_is_compared_differs_from_the_config_in_one_field(plan_request):
  """On a CPU a preset for it, and no name that this model without gates does not have."""
  base, *others = mesh_search.list_comparisons(plan_request, jax.devices())
  assert (base.remat, base.flags) == ('none', 'auto') and dict(base.mesh)['data'] == 8
  assert {one.remat for one in others if one.flags == 'auto'} == set(mesh_search.POLICIES) - {'none'}
  assert {one.flags for one in others if one.remat == 'none'} == {'none', 'ynnpack'}
  assert len(others) == len(mesh_search.POLICIES) + 1 and {one.mesh for one in others} == {base.mesh}


def test_a_policy_whose_names_the_model_lacks_is_no_candidate(tiny):
  config = tiny(**{'model.mixer': 'mamba2', 'model.position': 'none'})
  found = mesh_search.list_policies(PlanRequest(Experiment(config), 256, 0), jax.devices())
  assert found == ['none', 'dots', 'dots_with_no_batch_dims', 'full', "offload('block_input')"]


def planned(fits, seconds=1.0):
  return types.SimpleNamespace(memory=types.SimpleNamespace(fits=fits), bound=Bound(seconds, 0, 0, 0, 0, {}))


def test_what_is_needless():
  mesh, other = (('data', 8),), (('data', 4),)
  fit = [(Candidate(mesh, 'dots', 2, 'auto'), True)]
  assert mesh_search.is_redundant(Candidate(mesh, 'full', 2, 'auto'), fit) and mesh_search.is_redundant(
    Candidate(mesh, 'dots', 4, 'auto'), fit
  )
  assert not mesh_search.is_redundant(
    Candidate(mesh, 'none', 2, 'auto'), fit
  ) and not mesh_search.is_redundant(Candidate(mesh, 'full', 1, 'auto'), fit)
  assert not mesh_search.is_redundant(Candidate(other, 'full', 2, 'auto'), fit)
  full = [(Candidate(mesh, 'dots', 2, 'auto'), False)]
  assert mesh_search.is_redundant(Candidate(mesh, 'none', 2, 'auto'), full) and mesh_search.is_redundant(
    Candidate(mesh, 'dots', 1, 'auto'), full
  )
  assert not mesh_search.is_redundant(Candidate(mesh, 'full', 2, 'auto'), full)
  unknown = [(Candidate(mesh, 'dots', 2, 'auto'), None)]
  assert not mesh_search.is_redundant(Candidate(mesh, 'full', 4, 'auto'), unknown)


def test_the_best_fits():
  tried = [
    (Candidate((), 'none', 1, 'auto'), planned(False, 1)),
    (Candidate((), 'dots', 1, 'auto'), planned(True, 3)),
    (Candidate((), 'full', 1, 'auto'), planned(True, 2)),
  ]
  assert mesh_search.best_plan(tried)[0].remat == 'full' and mesh_search.best_plan(tried[:1]) is None
