"""Completing configs: defaults, unknown fields, types, values from the command line."""

import pytest
from ml_collections import ConfigDict

from tests.config.configs import TWO, assert_rejected, complete, override
from tfm.commands.cli import resolve_with_overrides
from tfm.config import overlay
from tfm.config.schema import default_config, leaves


class TestFields:
  def test_unset_fields_have_their_defaults(self):
    config = complete(seed=3, model=dict(width=48))
    assert config.seed == 3 and config.model.width == 48
    assert config.model.layers == default_config().model.layers and config.data == default_config().data

  @pytest.mark.parametrize(
    'sections, parts',
    [
      (dict(modle=dict(width=3)), ['config.modle.width=3 is not a field', "did you mean 'model'?"]),
      (dict(model=dict(widht=3)), ['config.model.widht=3', 'under config.model', "did you mean 'width'?"]),
      (dict(model=dict(width=dict(x=3))), ['config.model.width.x=3', 'no fields of its own']),
      (dict(model=dict(dropout=0.1)), ['config.model.dropout=0.1 is a section', 'attention', 'residual']),
      (
        dict(model=dict(dropout=dict(attn=0.1))),
        ['config.model.dropout.attn', 'known: attention, embedding, residual'],
      ),
      (
        dict(model=dict(blocks=dict(a=dict(layers=3)))),
        ['config.model.blocks.a.layers=3', 'known: ', 'heads'],
      ),
      (dict(model=dict(width='48')), ["config.model.width='48' must be of type int"]),
      (dict(model=dict(width=48.0)), ['config.model.width=48.0 must be of type int']),
      (dict(model=dict(width=None)), ['config.model.width=None must be of type int']),
      (dict(model=dict(score=None)), ['config.model.score=None must be of type str']),
      (dict(model=dict(tie_embeddings=1)), ['config.model.tie_embeddings=1 must be of type bool']),
      (dict(model=dict(kv_heads='all')), ["config.model.kv_heads='all' must be of type int"]),
      (dict(model=dict(pattern='local')), ["config.model.pattern='local' must be of type tuple"]),
      (
        dict(model=dict(blocks=dict(a=dict(kv_heads='x')))),
        ["config.model.blocks.a.kv_heads='x' must be of type int"],
      ),
      (dict(model=dict(blocks=dict(a=dict(mask=3)))), ['config.model.blocks.a.mask=3 must be of type str']),
      (dict(optimizer=dict(clip='x')), ["config.optimizer.clip='x' must be of type float"]),
      (dict(model=dict(width={})), ['config.model.width={} is a field, not a section']),
      (dict(modle={}), ['config.modle=', 'is not a field', "did you mean 'model'?"]),
    ],
  )
  def test_unknown_fields_and_wrong_types_are_rejected(self, sections, parts):
    assert_rejected(lambda: complete(**sections), *parts)

  def test_optional_fields_accept_none(self):
    config = complete(model=dict(kv_heads=None, blocks=dict(a=dict(mask=None)), pattern=('a',)))
    assert config.model.kv_heads is None and config.model.blocks.a.mask is None

  def test_an_int_becomes_a_float_and_a_list_a_tuple(self):
    config = complete(model=dict(pattern=['a'], blocks=dict(a={})), optimizer=dict(clip=2))
    assert config.model.pattern == ('a',) and config.optimizer.clip == 2.0

  def test_complete_does_not_change_its_argument(self):
    partial = ConfigDict(dict(model=dict(width=48)))
    overlay.complete(partial).model.width = 64
    assert partial.model.width == 48 and default_config().model.width != 64


class TestCommandLine:
  @pytest.mark.parametrize(
    'word, path, value',
    [
      ('--config.model.width=48', 'model.width', 48),
      ('--config.model.kv_heads=2', 'model.kv_heads', 2),
      ('--config.model.tie_embeddings=false', 'model.tie_embeddings', False),
      ('--config.model.tie_embeddings=True', 'model.tie_embeddings', True),
      ('--config.optimizer.learning_rate=3e-4', 'optimizer.learning_rate', 3e-4),
      ('--config.optimizer.clip=1', 'optimizer.clip', 1.0),
      ('--config.model.mask=causal & window(8)', 'model.mask', 'causal & window(8)'),
      ('--config.data.source=text("a=b/*.txt")', 'data.source', 'text("a=b/*.txt")'),
      ('--config.rules.batch=', 'rules.batch', ''),
      ('--config.init_from=3', 'init_from', '3'),
      ('--config.mesh.tensor=-1', 'mesh.tensor', -1),
    ],
  )
  def test_text_is_converted_to_the_type_of_the_field(self, word, path, value):
    config = complete(model=dict(heads=4))
    resolved = resolve_with_overrides(config, [word])
    actual = dict(leaves(resolved))[path]
    assert actual == value and type(actual) is type(value)

  def test_fields_of_blocks_can_be_overridden(self):
    config = override(
      '--config.model.blocks.local.mask=causal & window(2)',
      '--config.model.blocks.far.heads=2',
      "--config.model.pattern=('far', 'local')",
      **TWO,
    )
    assert config.model.pattern == ('far', 'local')
    assert config.model.blocks.local.mask == 'causal & window(2)' and config.model.blocks.far.heads == 2

  def test_none_is_resolved(self):
    assert override('--config.model.kv_heads=none', kv_heads=2).model.kv_heads == 6

  @pytest.mark.parametrize(
    'words, parts',
    [
      (['--config.model.widht=3'], ['config.model.widht', "did you mean 'width'?"]),
      (['--config.model.width=many'], ["config.model.width='many' must be of type int"]),
      (['--config.model.width=none'], ['config.model.width=None must be of type int']),
      (['--config.model.tie_embeddings=maybe'], ["config.model.tie_embeddings='maybe' must be of type bool"]),
      (['--config.model=3'], ['config.model', 'is a section']),
      (['--config.model.width'], ['--config.model.width needs a value']),
      (['--model.width=3'], ["'--model.width=3' is not a flag"]),
      (
        ['--config.model.blocks.local.mask=causal'],
        ['config.model.blocks.local.mask', 'under config.model.blocks'],
      ),
      (['--config.model.width=__import__("os").getpid()'], ['must be of type int']),
    ],
  )
  def test_invalid_overrides_are_rejected(self, words, parts):
    assert_rejected(lambda: override(*words), *parts)
