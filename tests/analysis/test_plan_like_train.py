"""What `tfm train` refuses before it compiles, `tfm plan` refuses in the same words, and nothing else."""

import itertools
import random

import jax
import pytest

from tfm.analysis import lowering
from tfm.commands.plan import rows_per_shard
from tfm.config.assemble import Experiment
from tfm.config.overlay import assign_text, complete
from tfm.config.resolve import resolve_config
from tfm.parallel import mesh as meshes
from tfm.runs import train
from tfm.runs.run_dir import RunDir


BASE = dict(
  data=dict(tokenizer='bytes', length=16),
  model=dict(layers=4, width=32, heads=4, kv_heads=2, feed_forward_width=64),
  training=dict(batch_size=8),
)
TEXT = ''.join(f'Line {i} of the text.\n' for i in range(20_000))
# Each case changes one field, or a mesh and one field.
FIELDS = {
  'mesh.data': ('-1', '1', '2', '3', '8', '16', '0'),
  'mesh.fsdp': ('-1', '2', '8', '64'),
  'mesh.tensor': ('-1', '2', '4', '8'),
  'mesh.sequence': ('2', '8', '-2'),
  'mesh.stage': ('2', '4', '8'),
  'mesh.expert': ('2', '8'),
  'slices.count': ('1', '2', '3', '0'),
  'slices.axis': ('stage', 'fsdp'),
  'training.batch_size': ('1', '4', '6', '12', '64'),
  'training.gradient_accumulation': ('2', '3', '8'),
  'training.recurrence_length': ('4', '5'),
  'training.skip_spikes': ('0.5', '3.0'),
  'training.loss_chunk': ('0', '7'),
  'training.save_every': ('steps(0)', 'minutes(1)'),
  'data.length': ('15', '17', '4096'),
  'data.packing': ('first_fit', 'buckets'),
  'model.layers': ('1', '3', '6'),
  'model.heads': ('8', '32'),
  'model.kv_heads': ('1', '3', '4'),
  'model.width': ('48', '100'),
  'model.feed_forward_width': ('63', '96'),
  'model.feed_forward': ('mixture_of_experts(experts=4)', 'mixture_of_experts(experts=3)', 'swiglu'),
  'model.mask': ('full', 'causal & window(4)'),
  'model.kernel': ('ring', 'dense'),
  'model.mixer': ('gla', 'longformer(window=4)', 'mamba2'),
  'model.position': ('learned(8)', 'alibi'),
  'model.scan': ('False',),
  'model.remat': ('full', 'some', "save('mixer/q', offload='attention')", "save('mixer/query')", 'save()'),
  'compiler.flags': ('ynnpack', 'collective_matmul', 'fast'),
  'compiler.options': ('xla_cpu_enable_fast_math',),
  'training.gradient_reduction': ('bfloat16', 'bf16'),
  'optimizer.offload': ('True',),
  'model.dtype': ('float16', 'bfloat16', 'int8'),
  'pipeline.microbatches': ('2', '3'),
  'pipeline.repeats': ('2', '3'),
  'optimizer.name': ('muon', 'adafactor', 'adamw(b1=2.0)'),
  'optimizer.frozen': ('nothing', '.*', 'embed', '('),
  'optimizer.no_decay': ('nothing', 'bias'),
  'optimizer.clip': ('1e-9',),
  'optimizer.layer_decay': ('0.9',),
  'lora.rank': ('2',),
  'rules.batch': ('data', 'model', 'data tensor'),
  'rules.vocab': ('', 'tensor stage'),
  'rules.mlp': ('tensor sequence',),
  'rules.kv_heads': ('',),
  'objective': ('masked_lm', 'span_corruption'),
}
SINGLE = [((field, value),) for field, values in FIELDS.items() for value in values]
MESHES = [
  [('mesh.' + axis, size) for axis, size in sizes.items()]
  for sizes in (
    dict(data='2', tensor='4'),
    dict(data='1', fsdp='-1'),
    dict(data='2', sequence='2', tensor='2'),
    dict(data='2', stage='4'),
    dict(data='2', expert='4'),
    dict(data='2', fsdp='2', stage='2'),
  )
]
PAIRS = [
  (*mesh, change) for mesh, (change,) in itertools.product(MESHES, SINGLE) if not change[0].startswith('mesh')
]
# More than the devices here hold.
LARGE = (('training.batch_size', '16777216'), ('data.length', '4096'))
CASES = [*SINGLE, LARGE, *random.Random(0).sample(PAIRS, 200)]


def refusal(function, *args) -> str:
  """The sentence with which a function refuses, '' if it does not."""
  try:
    function(*args)
  except ValueError as error:
    return str(error)
  return ''


def name(case) -> str:
  return ' '.join(f'{field}={value}' for field, value in case)


@pytest.fixture
def config(case, tmp_path, monkeypatch):
  """The config of a case, before it is resolved."""
  (tmp_path / 'a.txt').write_text(TEXT)
  monkeypatch.chdir(tmp_path)
  config = complete(BASE)
  config.data.source = 'text("a.txt")'
  for field, value in case:
    assign_text(config, field, value)
  return config


def validate_plan(config):
  """What `tfm plan --topology=here` does before it lowers: the request and the mesh."""
  config = resolve_config(config)
  request = lowering.PlanRequest.from_experiment(Experiment(config), None)
  lowering.validate_request(request, jax.devices())
  return request, meshes.make(config.mesh.to_dict(), jax.devices(), **config.slices)


@pytest.mark.sampled(10)
@pytest.mark.parametrize('case', CASES, ids=map(name, CASES))
def test_plan_refuses_what_train_refuses(config, tmp_path):
  def prepare():
    run = RunDir.from_config(resolve_config(config), 0, tmp_path / 'run')
    train.shard(train.prepare([run], {}))

  trains = refusal(prepare)
  assert refusal(validate_plan, config) == trains


def test_devices_that_are_not_attached_have_their_own_memory():
  request = lowering.PlanRequest.from_experiment(Experiment(resolve_config(complete(BASE))), None)
  lowering.validate_request(request, jax.devices(), capacity=2**20)
  with pytest.raises(ValueError, match='needs at least .* on each device .*, which has 0.0 GiB'):
    lowering.validate_request(request, jax.devices(), capacity=2**16)


@pytest.mark.sampled(3)
@pytest.mark.parametrize('case', SINGLE, ids=map(name, SINGLE))
def test_plan_lowers_what_it_accepts(config):
  if refusal(validate_plan, config):
    return
  request, mesh = validate_plan(config)
  lowering.lower_training_step(request, mesh)
  if lowering.supports_decoding(request):
    lowering.lower_decoding_step(request, mesh, rows_per_shard(request, mesh))
