"""Resolving configs: derived fields, blocks that inherit."""

import json

import pytest

from tests.config.configs import TWO, complete, resolved
from tfm.config import overlay
from tfm.config.difference import list_differences
from tfm.config.load import to_json
from tfm.config.resolve import resolve_config
from tfm.config.schema import BLOCK_FIELDS


class TestResolve:
  def test_derived_fields(self):
    model = resolved(width=48, heads=4).model
    assert (model.kv_heads, model.head_width, model.feed_forward_width) == (4, 12, 192)

  @pytest.mark.parametrize(
    'name, width, hidden',
    [
      ('gelu', 48, 192),
      ('relu', 48, 192),
      ('swiglu', 48, 128),
      ('geglu', 384, 1024),
      ('swiglu', 4096, 10944),
    ],
  )
  def test_default_feed_forward_widths(self, name, width, hidden):
    # Gated: two thirds of 4 D (Shazeer 2020, §3), rounded up to a multiple of 64.
    assert resolved(width=width, heads=1, feed_forward=name).model.feed_forward_width == hidden

  def test_set_fields_are_not_changed(self):
    model = resolved(width=48, heads=5, head_width=6, kv_heads=1, feed_forward_width=7).model
    assert (model.kv_heads, model.head_width, model.feed_forward_width) == (1, 6, 7)

  def test_blocks_inherit_the_fields_of_the_model(self):
    model = resolved(width=48, heads=4, kv_heads=2, norm='rmsnorm', **TWO).model
    far, local = model.blocks.far, model.blocks.local
    assert (far.position, far.mask, far.heads, far.kv_heads, far.head_width) == ('none', 'causal', 4, 2, 12)
    assert (local.position, local.mask, local.norm) == ('rope', 'causal & window(8)', 'rmsnorm')
    # Derived fields follow from the block's own heads: 3 heads have 3 key heads of 16 channels.
    assert (local.heads, local.kv_heads, local.head_width) == (3, 3, 16)
    assert all(block[f] is not None for block in (far, local) for f in BLOCK_FIELDS)

  def test_a_gated_block_has_its_own_feed_forward_width(self):
    model = resolved(
      width=48, heads=4, blocks=dict(a=dict(feed_forward='swiglu'), b={}), pattern=('a', 'b')
    ).model
    assert (model.blocks.a.feed_forward_width, model.blocks.b.feed_forward_width) == (128, 192)

  def test_resolve_does_not_change_its_argument(self):
    config = complete(model=TWO)
    resolve_config(config)
    assert config.model.kv_heads is None and config.model.blocks.far.mask is None

  def test_resolve_is_idempotent_and_survives_json(self):
    config = resolved(**TWO)
    assert resolve_config(config) == config
    decoded = json.loads(to_json(config))
    assert resolve_config(overlay.complete(decoded)) == config and list_differences(decoded, config) == []
