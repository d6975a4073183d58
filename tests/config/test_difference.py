"""The fields in which two configs differ."""

import pytest

from tests.config.configs import TWO, complete, resolved
from tfm.config.difference import list_differences
from tfm.config.resolve import resolve_config


class TestDifference:
  def test_fields_that_change_the_run_are_listed(self):
    new = resolved(width=48, heads=4)
    assert list_differences(new, new) == []
    other = complete(
      seed=1, model=dict(width=48, heads=4, mask='causal & window(2)'), training=dict(batch_size=64)
    )
    assert set(list_differences(new, resolve_config(other))) == {
      'seed: 0 → 1',
      "model.mask: 'causal' → 'causal & window(2)'",
      'training.batch_size: 32 → 64',
    }

  def test_fields_that_do_not_change_the_run_are_not_listed(self):
    free = dict(
      mesh=dict(fsdp=4),
      rules=dict(embed=''),
      compiler=dict(flags='latency_hiding'),
      data=dict(reader_threads=9),
      training=dict(
        log_every=1, evaluate_every=7, evaluation_batches=3, keep_checkpoints=9, profile=2, loss_chunk=64
      ),
      model=TWO | dict(remat='full', kernel='other'),
    )
    old, new = complete(model=TWO), complete(**free)
    new.model.blocks.local.kernel = 'other'
    assert list_differences(old, new) == []

  def test_options_of_the_compiler_are_listed_and_its_presets_are_not(self):
    new = complete(compiler=dict(flags='ynnpack', options='xla_cpu_enable_fast_math=true'))
    assert list_differences(complete(), new) == ["compiler.options: '' → 'xla_cpu_enable_fast_math=true'"]

  def test_differences_of_blocks_lists_and_unknown_fields(self):
    old, new = complete(model=TWO), complete(model=TWO)
    new.model.blocks.local.mask = 'causal'
    assert list_differences(old, new) == ["model.blocks.local.mask: 'causal & window(8)' → 'causal'"]
    assert list_differences(old.to_dict() | dict(x=['a']), old.to_dict() | dict(x=('a',))) == []
    lines = list_differences(old.to_dict() | dict(x=1), old.to_dict() | dict(y=2))
    assert lines == ['x: 1 → None', 'y: None → 2']

  @pytest.mark.parametrize('schedule, is_listed', [('cosine', True), ('linear', True), ('constant', False)])
  def test_steps_are_listed_if_the_schedule_depends_on_them(self, schedule, is_listed):
    old = complete(optimizer=dict(schedule=schedule), training=dict(steps=10))
    new = complete(optimizer=dict(schedule=schedule), training=dict(steps=20))
    assert list_differences(old, new) == (['training.steps: 10 → 20'] if is_listed else [])
