"""`tfm plan`: the steps of a tiny run compiled for the eight devices here, and refusals."""

import dataclasses
import json
import os
import re

import jax
import pytest

from tfm.analysis import gpu_targets, mesh_search, plan, topology
from tfm.analysis.calibration import read_calibration
from tfm.commands import cli
from tfm.parallel import chip_specs
from tfm.parallel.chip_specs import Chip


CONFIG = """
def get_config(arg=''):
  return dict(
    data=dict(tokenizer='sentencepiece(300)', length=16),
    model=dict(layers=3, width=32, heads=4, kv_heads=2, feed_forward='swiglu', remat='full',
    tie_embeddings=False), training=dict(batch_size=8), mesh=dict(data=2, fsdp=2, tensor=2))
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
  """Words of the command line → exit status, stdout, stderr."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(topology, 'PLATFORM', os.environ['JAX_PLATFORMS'])
  (tmp_path / 'a.py').write_text(CONFIG)

  def run(*words):
    status = cli.main(['plan', '--config=a.py', *words])
    return status, *capsys.readouterr()

  return run


# A chip of which a CPU's device is one.
CPU = Chip('a CPU', flops=1e11, memory=2**20, bandwidth=1e10, links=1e9, network=1e8, host=1e9, dims=0)


@pytest.mark.slow
def test_here(run, tmp_path, monkeypatch):
  """Memory, FLOPs and collectives of the training step, and the bound by a chip of our own."""
  monkeypatch.setitem(chip_specs.CHIPS, 'cpu', CPU)
  write_measurements(tmp_path / 'results.jsonl', dict(tflops=0.02), dict(error='no memory'), dict(gbps=1.0))
  status, out, err = run('--topology=here', '--rows=0', '--to=out', '--calibration=results.jsonl')
  assert 'calibration: cpu cpu; a machine' in err
  assert (
    status == 0
    and 'training: one device of 8 × cpu (data 2 × fsdp 2 × tensor 2)' in out
    and 'decoding' not in out
  )
  saved = json.loads((tmp_path / 'out' / 'plan.json').read_text())
  [one] = saved['plans']
  assert saved['versions'].startswith('jax ')
  kinds = one['memory']['kinds']
  assert kinds['optimizer'] == 2 * kinds['parameters'] + 2 * 4  # two moments, two counters
  assert sum(kinds.values()) == one['memory']['needed']
  assert one['memory']['capacity'] == 2**20 and one['fits'] == (one['memory']['needed'] <= 2**20)
  # What is computed again are three of four forward products of a layer; nothing is computed on all devices
  # alike.
  assert 1 < one['products'] * 8 / one['flops'] < 1.6
  by = {(each['kind'], tuple(each['axes'])): each for each in one['collectives']}
  assert by['all-gather', ('fsdp',)]['count'] >= 3 * 2 and by['all-reduce', ('tensor',)]['count'] >= 3 * 3
  b = one['bound']
  assert b['seconds'] == max(b[name] for name in ('compute', 'memory', 'links', 'network', 'host'))
  assert b['compute'] == pytest.approx(one['products'] / 1e11)
  assert one['mfu'] == pytest.approx(one['flops'] / 8 / b['seconds'] / 1e11)
  assert b['serial_seconds'] == pytest.approx(
    sum(b[name] for name in ('compute', 'memory', 'links', 'network', 'host'))
  )
  assert one['tokens_per_second'] == pytest.approx([8 * 16 / b['serial_seconds'], 8 * 16 / b['seconds']])
  assert one['tokens_per_second_per_chip'] == pytest.approx([rate / 8 for rate in one['tokens_per_second']])
  least, most = (f'{rate:,.0f}' for rate in one['tokens_per_second_per_chip'])
  assert re.search(rf'tokens/s a chip +between {least} and {most} +trained without overlap', out)
  text = (tmp_path / 'out' / 'plan.md').read_text()
  assert '| parameters |' in text and 'all-reduce | tensor' in text
  assert one['expected']['compute'] == pytest.approx(one['products'] / 2e10)
  assert one['expected']['memory'] == pytest.approx(one['moved'] / 1e9)
  assert one['expected']['links'] == b['links'] and 'time expected' in text


def write_measurements(path, *found):
  """A file as `tfm benchmark device` writes it."""
  lines = [
    json.dumps(dict(key=str(i), found=each, machine='cpu cpu; a machine')) for i, each in enumerate(found)
  ]
  path.write_text('\n'.join(lines) + '\n', encoding='utf-8')


def test_a_calibration_of_another_chip_is_rejected(run, tmp_path, monkeypatch):
  monkeypatch.setitem(chip_specs.CHIPS, 'cpu', CPU)
  write_measurements(tmp_path / 'results.jsonl', dict(tflops=700.0, gbps=4000.0))
  text = (tmp_path / 'results.jsonl').read_text().replace('cpu cpu', 'gpu NVIDIA H200')
  (tmp_path / 'results.jsonl').write_text(text)
  status, _, err = run('--topology=here', '--rows=0', '--calibration=results.jsonl')
  assert status == 2 and "measured on 'NVIDIA H200', and the plan is for a CPU" in err


@pytest.mark.parametrize(
  ('text', 'sentence'),
  [
    ('', 'has no measured matrix product or no copy'),
    ('{"key": "a", "found": {"tflops": 1.0}, "machine": "m"}', 'has no measured matrix product or no copy'),
    ('{"step": 1}', 'is not a results.jsonl'),
    ('[1, 2', 'is not a results.jsonl'),
    ('{"found": {"tflops": 1, "gbps": 1}, "machine": "m", "smoke": true}', 'is of a smoke test'),
  ],
)
def test_a_calibration_without_rates_is_rejected(tmp_path, text, sentence):
  with pytest.raises(ValueError, match='c is not a file'):
    read_calibration(tmp_path / 'c')
  (tmp_path / 'c').write_text(text, encoding='utf-8')
  with pytest.raises(ValueError, match=sentence):
    read_calibration(tmp_path / 'c')


@pytest.mark.slow
def test_experts_count_their_own_rows(run, tmp_path):
  """Each of four devices gathers the rows of all and skips those of the others' experts."""
  experts = '--config.model.feed_forward=mixture_of_experts(experts=8)'
  axes = ('--config.mesh.data=2', '--config.mesh.fsdp=1', '--config.mesh.tensor=1', '--config.mesh.expert=4')
  status, _, err = run('--topology=here', '--rows=0', '--to=out', experts, *axes)
  assert status == 0, err
  [one] = json.loads((tmp_path / 'out' / 'plan.json').read_text())['plans']
  assert 1 < one['products'] * 8 / one['flops'] < 1.6


@pytest.mark.slow
def test_loops_that_do_not_tell_count_no_less_than_the_model(run, tmp_path):
  """The ring goes over the blocks that a mask opens, which are others on each device."""
  status, out, _ = run(
    '--topology=here', '--rows=0', '--to=out', '--config.mesh.tensor=1', '--config.mesh.sequence=2'
  )
  assert status == 0 and 'a loop has an unknown trip count' in out
  [one] = json.loads((tmp_path / 'out' / 'plan.json').read_text())['plans']
  assert one['products'] * 8 >= one['flops'] and not one['is_complete']


@pytest.mark.slow
def test_a_collective_in_a_loop_of_unknown_length_is_counted_once_with_a_notice(run, tmp_path):
  """Dropout of attention weights leaves `chunked`, which gathers rows and goes over the blocks that a mask
  opens.
  """
  status, out, _ = run(
    '--topology=here',
    '--rows=0',
    '--to=out',
    '--config.mesh.tensor=1',
    '--config.mesh.fsdp=1',
    '--config.mesh.data=4',
    '--config.mesh.sequence=2',
    '--config.data.length=1024',
    '--config.model.dropout.attention=0.1',
  )
  assert status == 0 and 'counted once' in out
  [one] = json.loads((tmp_path / 'out' / 'plan.json').read_text())['plans']
  assert any(each['least'] and each['axes'] == ['sequence'] for each in one['collectives'])


@pytest.mark.slow
def test_the_decoding_step(run, tmp_path):
  status, out, _ = run('--topology=here', '--to=out')
  assert status == 0
  training, decoding = json.loads((tmp_path / 'out' / 'plan.json').read_text())['plans']
  assert decoding['tokens'] == 4  # one row for each part of a batch
  assert decoding['products'] * 8 == pytest.approx(decoding['flops'])
  # Keys and values of 4 rows, 3 layers, 2 heads, 16 tokens, 8 channels, cut into 4 × 2; and where the tokens
  # stand.
  assert decoding['memory']['kinds']['cache'] == 2 * 3 * 16 * 8 * 4 + 3 * (3 * 16 * 4 + 4)
  assert training['bound'] is None and 'no published peak' in out


@pytest.mark.slow
def test_a_search(run, tmp_path, monkeypatch):
  """Candidates that do not fit are skipped; the best one that fits is reported."""
  needed = iter((2 * 2**20, 2**19, 2**19 + 1))
  real = plan.memory_from_compiler
  monkeypatch.setattr(
    plan, 'memory_from_compiler', lambda *args: dataclasses.replace(real(*args), needed=next(needed))
  )
  monkeypatch.setitem(chip_specs.CHIPS, 'cpu', CPU)
  status, out, err = run('--topology=here', '--search', '--limit=3', '--axes=data,fsdp', '--to=out')
  saved = json.loads((tmp_path / 'out' / 'plan.json').read_text())
  assert status == 0 and [one['fits'] for one in saved['tried']] == [False, True, True]
  assert saved['best'] in [one['flags'] for one in saved['tried'][1:]] and f'best: {saved["best"]}' in out
  assert '3 of at most 3, about' in err and 'are skipped by --limit=3' in err


@pytest.mark.slow
def test_a_comparison(run, tmp_path, monkeypatch):
  """The config's mesh under each remat policy and each preset, one row each."""
  monkeypatch.setitem(chip_specs.CHIPS, 'cpu', dataclasses.replace(CPU, memory=2**30))
  monkeypatch.setattr(mesh_search, 'POLICIES', ("save('attention')", 'full', "save('mixer/query')"))
  status, out, _ = run('--topology=here', '--compare', '--rows=0', '--to=out')
  tried = json.loads((tmp_path / 'out' / 'plan.json').read_text())['tried']
  assert status == 0 and len(tried) == 4 and '4 candidates' in out
  settings = [one['flags'].partition('--config.model.remat=')[2] for one in tried]
  products = {one: each['products'] for one, each in zip(settings, tried)}
  assert len(products) == 4 and len(set(products.values())) == 2
  for setting, count in products.items():
    assert count == (max if setting.startswith('full ') else min)(products.values())


@pytest.mark.slow
def test_a_search_skips_meshes_estimated_not_to_fit(run, tmp_path, monkeypatch):
  monkeypatch.setitem(chip_specs.CHIPS, 'cpu', CPU)
  monkeypatch.setattr(
    mesh_search,
    'estimate_bytes',
    lambda request, devices: (3 if request.config.training.gradient_accumulation == 1 else 1) * 2**20,
  )
  status, _, err = run(
    '--topology=here', '--search', '--limit=1', '--axes=data', '--to=out', '--config.training.batch_size=16'
  )
  saved = json.loads((tmp_path / 'out' / 'plan.json').read_text())
  assert status in (0, 1) and ['accumulation=2 ' in one['flags'] for one in saved['tried']] == [True]
  assert err.count('skipped, estimated at') == len(mesh_search.POLICIES)


@pytest.mark.parametrize(
  'words, sentence',
  [
    (('--topology=v5p-100',), r'counts? cores, two per chip; use v5p:4x4x4 \(v5p-128\)'),
    (('--topology=v5p:0x0x0',), 'lacks the 3 dimensions of v5p; use v5p:'),
    (('--topology=v5p:4x4x999999999',), 'is no slice of v5p; use v5p:16x20x28'),
    (('--topology=',), '--topology= is unknown; a topology is'),
    (('--topology=v5e:4x4', '--slices=1000000000'), 'exceed the 65,536 chips'),
    (('--topology=h100:0',), 'lacks the number of GPUs per host'),
    (('--topology=here', '--slices=2'), '--slices=2 needs a topology'),
    (
      ('--topology=here', '--config.lora.rank=2'),
      'config.lora.rank=2 adapts the parameters of another run; set config.init_from',
    ),
    (
      ('--topology=here', '--config.optimizer.frozen=nothing'),
      "config.optimizer.frozen='nothing' matches no parameter",
    ),
    (
      ('--topology=here', '--config.training.batch_size=1000000', '--config.data.length=100000'),
      r'needs at least [\d,.]+ GiB on each device .*, which has',
    ),
    (('--topology=here', '--config.mesh.data=3'), 'needs 12 devices and there are 8'),
    (
      ('--topology=here', '--config.mesh.data=1', '--config.mesh.tensor=-1', '--config.mesh.fsdp=1'),
      'splits .* into 8 shards, which do not divide its size',
    ),
    (
      ('--topology=here', '--config.mesh.tensor=16'),
      'needs 64 devices and there are 8; the nearest valid mesh of 8 devices is data=2',
    ),
    (
      ('--topology=here', '--config.slices.axis=foo'),
      "config.slices.axis='foo' cannot span slices; use 'data' or 'stage'",
    ),
    (
      ('--topology=here', '--search', '--config.slices.count=3'),
      'config.slices.count=3 does not divide 8 devices',
    ),
    (('--topology=here', '--config.training.batch_size=6'), 'use a multiple of 4'),
    (('--topology=here', '--config.data.tokenizer=char'), 'set --vocab=N'),
    (('--topology=here', '--vocab=0'), '--vocab=0 must be at least 1'),
    (('--topology=here', '--rows=-1'), '--rows=-1 must be 0'),
    (
      ('--topology=here', '--search', '--axes=data,model'),
      "--axes='model' is unknown; known: stage, data, fsdp",
    ),
    (
      ('--topology=here', '--search', '--config.training.batch_size=1', '--axes=data'),
      'finds no mesh of 8 devices',
    ),
  ],
)
def test_refusals(run, words, sentence):
  status, _, err = run(*words)
  assert status == 2 and len(err.strip().splitlines()) == 1 and 'kernel: auto' not in err
  assert re.search(sentence, err)


@pytest.mark.slow
def test_for_a_topology(run, tmp_path):
  """A v5e slice of sixteen chips, none of which is here."""
  if not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  status, out, err = run(
    '--topology=v5e:4x4',
    '--config.mesh.data=2',
    '--config.mesh.fsdp=4',
    '--config.data.length=128',
    '--to=out',
    '--config.model.dtype=bfloat16',
    '--config.training.batch_size=16',
  )
  assert status == 0, err
  assert 'hosts: 4, each reading 4 of the 16 rows of a batch' in err
  assert 'one device of 16 × TPU v5 lite' in out and 'kernel: auto chose splash on tpu' in err
  training, decoding = json.loads((tmp_path / 'out' / 'plan.json').read_text())['plans']
  for one in (training, decoding):
    assert (
      one['fits']
      and one['memory']['capacity'] == 16 * 2**30
      and one['bound']['seconds'] > 0
      and one['mfu'] < 1
    )
  assert {axis for each in training['collectives'] for axis in each['axes']} == {'data', 'fsdp', 'tensor'}


@pytest.mark.slow
def test_for_boxes_of_gpus(run, tmp_path):
  """Two boxes of eight GPUs, none of which is here: what goes over `data` goes from box to box."""
  if not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  status, out, err = run(
    '--topology=h100:8',
    '--slices=2',
    '--config.mesh.data=2',
    '--config.mesh.fsdp=4',
    '--config.data.length=256',
    '--to=out',
    '--config.model.dtype=bfloat16',
    '--config.training.batch_size=16',
  )
  assert status == 0, err
  assert 'one device of 16 × NVIDIA H100 80GB HBM3' in out
  assert 'kernel: auto chose cudnn on gpu' in err
  training, decoding = json.loads((tmp_path / 'out' / 'plan.json').read_text())['plans']
  for one in (training, decoding):
    assert (
      one['fits']
      and one['memory']['capacity'] == 80 * 10**9
      and one['bound']['seconds'] > 0
      and one['mfu'] < 1
    )
  assert {axis for each in training['collectives'] for axis in each['axes']} == {'data', 'fsdp', 'tensor'}
  assert 'jax-cuda12-plugin' in (tmp_path / 'out' / 'plan.md').read_text()
  assert training['bound']['network'] > 0 and decoding['bound']['network'] < training['bound']['network']


def test_slices_that_are_not_the_topologys_are_refused(run, monkeypatch):
  monkeypatch.setattr(topology, 'devices', lambda name, slices: jax.devices())
  status, _, err = run('--topology=h100:4', '--slices=2', '--config.slices.count=4')
  assert status == 2 and 'config.slices.count=4 is not --slices=2; leave it at -1' in err
