"""Senseless values are rejected by the ranges declared beside fields and arguments, in one sentence."""

import jax
import pytest

from tfm.commands.cli import format_field
from tfm.config import validate
from tfm.config.assemble import Experiment
from tfm.config.field_docs import describe_field
from tfm.config.overlay import assign_text, complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import default_config, field_ranges, leaves
from tfm.spec import unsuitable_reason


def prepare(path, text):
  """What happens to a config before data is read."""
  config = complete({})
  assign_text(config, path, text)
  experiment = Experiment(resolve_config(config))
  validate.validate_run(experiment, jax.device_count())
  validate.validate_parts(experiment)


@pytest.mark.parametrize(
  'path, text, reason',
  [
    ('optimizer.name', 'adam(b1=1.5)', 'b1=1.5 must be at least 0 and below 1'),
    ('optimizer.name', 'adam(b1=1.0)', 'b1=1.0 must be at least 0 and below 1'),
    ('optimizer.name', 'adamw(b2=1.5)', 'b2=1.5 must be'),
    ('optimizer.name', 'adamw(eps=-1.0)', 'eps=-1.0 must be at least 0'),
    ('optimizer.name', 'adamw(eps=1e999)', 'eps=inf must be finite'),
    ('optimizer.name', 'adamw(weight_decay=-1.0)', 'weight_decay=-1.0 must be at least 0'),
    ('optimizer.name', 'adamw(weight_decay=1e8)', 'takes 1e+05 of each parameter away in a step'),
    ('optimizer.name', 'adafactor(weight_decay=1.0)', 'takes 1 of each parameter away in a step'),
    ('optimizer.name', 'lion(b1=1.5)', 'b1=1.5 must be'),
    ('optimizer.name', 'sgd(momentum=-1.5)', 'momentum=-1.5 must be at least 0 and below 1'),
    ('optimizer.name', 'sgd(nesterov=True)', 'nesterov=True has no effect without momentum'),
    ('optimizer.name', 'adafactor(min_dim_size_to_factor=-1)', 'factor=-1 must be at least 1'),
    ('optimizer.schedule', 'cosine(floor=-1.0)', 'floor=-1.0 must be at least 0 and at most 1'),
    ('optimizer.schedule', 'cosine(floor=1e38)', 'floor=1e+38 must be'),
    ('optimizer.learning_rate', '1e6', 'learning_rate=1000000.0 must be at least 0 and at most 1,000'),
    ('optimizer.learning_rate', '1e400', 'learning_rate=inf must be finite'),
    ('optimizer.clip', '1e-300', 'clip=1e-300 would stop training; use 0'),
    ('model.mask', '~full', 'hides every token from every other'),
    ('model.mask', 'causal & ~causal', 'hides every token from every other'),
    ('model.feed_forward', 'mixture_of_experts(experts=4, top_k=4, capacity=0.01)', 'capacity=0.01 must be'),
    ('model.norm', 'layernorm(epsilon=1e38)', 'epsilon=1e+38 must be at least 0 and at most 1'),
    ('model.norm', 'layernorm(epsilon=-1.0)', 'epsilon=-1.0 must be at least 0'),
    ('model.position', 'deberta(epsilon=-1.0)', 'epsilon=-1.0 must be at least 0'),
    ('objective', 'span_corruption(span=1e38)', 'span=1e+38 must be at least 1 and at most 1,000'),
    ('objective', 'span_corruption(sentinels=1000000000)', 'sentinels=1000000000 must be'),
    ('objective', 'causal_lm(z_loss=1e999)', 'z_loss=inf must be finite'),
    ('decoding.length_penalty', 'gnmt(alpha=1e999)', 'alpha=inf must be finite'),
    ('decoding.length_penalty', 'gnmt(alpha=1e300)', 'alpha=1e+300 must be at least -10 and at most 10'),
    ('optimizer.layer_decay', '1e-30', 'layer_decay=1e-30 must be at least 0.01 and at most 1'),
    ('model.heads', 'True', 'config.model.heads=True must be of type int'),
    ('training.steps', 'True', 'config.training.steps=True must be of type int'),
    ('data.length', 'True', 'config.data.length=True must be of type int'),
    ('model.initializer', 'xavier_uniform(scale=-1.0)', 'scale=-1.0 must be above 0'),
    ('model.mixer', 'softmax(soft_cap=1e999)', 'soft_cap=inf must be finite'),
    ('seed', '9223372036854775808', 'must be at least 0 and below 4,294,967,296'),
    ('data.length', '1000000000000', 'config.data.length=1000000000000 must be at least 1 and at most'),
    ('model.width', '1000000000000', 'config.model.width=1000000000000 must be'),
    ('model.head_width', '1000000000000', 'config.model.head_width=1000000000000 must be'),
    ('model.layers', '1000000000000', 'must be at least 1 and at most 10,000'),
    ('model.mask', 'bigbird(random=1000000000)', 'random=1000000000 must be at least 0 and at most 1,024'),
    ('model.mixer', 'latent(rope_width=1000000000, rank=2)', 'at most 16,777,216'),
    ('model.position', 'learned(before=1000000000)', 'before=1000000000 must be'),
    ('model.pattern', '(1,)', 'has an entry that must be of type str'),
    ('model.architecture', '', "config.model.architecture='' is unknown; known: decoder"),
  ],
)
def test_senseless_values_are_rejected(path, text, reason):
  with pytest.raises(ValueError) as error:
    prepare(path, text)
  message = str(error.value)
  assert message.startswith(f'config.{path}=') and reason in message, message


def test_every_default_is_in_its_range():
  ranges = field_ranges()
  fields = dict(leaves(default_config()))
  assert set(ranges) <= set(fields)
  for path, annotation in ranges.items():
    assert fields[path] is None or not unsuitable_reason(fields[path], annotation), path


def test_every_number_has_a_range():
  without = {
    path
    for path, value in leaves(default_config())
    if isinstance(value, (int, float)) and not isinstance(value, bool) and path not in field_ranges()
  }
  assert {path.partition('.')[0] for path in without} == {'mesh', 'slices'}  # their numbers depend on devices


def test_sections_that_inherit_have_the_same_ranges():
  config = complete(dict(model=dict(blocks=dict(a=dict(heads=0)), pattern=('a',))))
  with pytest.raises(ValueError, match='config.model.blocks.a.heads=0 must be at least 1'):
    resolve_config(config)


def test_help_shows_the_range():
  length, source = format_field(('data.length', 256)), format_field(('data.source', 'stdlib'))
  assert length.startswith('  --config.data.length=256  [≥ 1]  ') and '[' not in source
  assert length.endswith('  ' + describe_field('data.length')), 'its meaning is lacking'
