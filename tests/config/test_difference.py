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
      optimizer=dict(offload=True),
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

  @pytest.mark.parametrize(
    'step, old, new, are_same',
    [
      (30, 'constant', 'constant', True),
      (30, 'rsqrt', 'rsqrt', True),
      (1, 'cosine', 'cosine', True),  # in the warm-up
      (30, 'cosine', 'cosine', False),
      (30, 'linear', 'linear', False),
      (80, 'wsd(0.2)', 'wsd(0.2)', True),  # of 100 steps: it has not begun to decay
      (81, 'wsd(0.2)', 'wsd(0.2)', False),
      (100, 'constant', 'wsd(0.5)', True),  # of 200 steps: it decays after them
      (101, 'constant', 'wsd(0.5)', False),
    ],
  )
  def test_the_schedule_may_change_after_the_steps_of_the_checkpoint(self, step, old, new, are_same):
    old = complete(optimizer=dict(schedule=old, warmup=4), training=dict(steps=100))
    new = complete(optimizer=dict(schedule=new, warmup=4), training=dict(steps=200))
    lines = {'training.steps: 100 → 200'}
    if old.optimizer.schedule != new.optimizer.schedule:
      lines.add(f'optimizer.schedule: {old.optimizer.schedule!r} → {new.optimizer.schedule!r}')
    assert set(list_differences(old, new, step)) == (set() if are_same else lines)
    assert set(list_differences(old, new)) == lines

  @pytest.mark.parametrize('field, value', [('learning_rate', 0.5), ('warmup', 3)])
  def test_another_rate_of_past_steps_is_listed(self, field, value):
    old = complete(optimizer=dict(schedule='constant', warmup=4))
    new = complete(optimizer=dict(schedule='constant', warmup=4) | {field: value})
    assert [line.partition(':')[0] for line in list_differences(old, new, 10)] == [f'optimizer.{field}']
    assert list_differences(old, old, 10) == []
