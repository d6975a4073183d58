"""Configs for these tests, and the assertion that one is rejected."""

import jax
import pytest

from tfm.commands.cli import resolve_with_overrides
from tfm.config import overlay
from tfm.config.resolve import resolve_config


TWO = dict(
  pattern=('local', 'far'),
  blocks=dict(local=dict(mask='causal & window(8)', heads=3), far=dict(position='none')),
)


def complete(**sections):
  return overlay.complete(sections)


def resolved(**model):
  return resolve_config(complete(model=model))


def override(*words, **model):
  """The resolved config with overrides from the command line."""
  return resolve_with_overrides(complete(model=model), words)


def assert_rejected(call, *parts):
  """Asserts that the call raises a one-line ValueError with all the parts, and compiles nothing."""
  compiled = []

  def listener(event, *_, **__):
    if 'backend_compile' in event:
      compiled.append(event)

  jax.monitoring.register_event_duration_secs_listener(listener)
  try:
    with pytest.raises(ValueError) as error:
      call()
  finally:
    jax.monitoring.unregister_event_duration_listener(listener)
  sentence = str(error.value)
  assert all(part in sentence for part in parts), sentence
  assert '\n' not in sentence and not compiled
