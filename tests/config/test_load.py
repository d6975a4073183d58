"""Config files: loading, shrinking to a smoke test."""

import pathlib

import pytest

from tests.config.configs import assert_rejected, complete
from tfm.commands.cli import resolve_with_overrides
from tfm.config.assemble import Experiment
from tfm.config.load import load_config, smoke, to_json
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run


class TestSmoke:
  SLOTS = dict(
    mixer='softmax',
    position='learned',
    mask='causal & window(100)',
    score='dot(0.5)',
    feed_forward='swiglu',
    norm='rmsnorm',
    norm_placement='sandwich',
    tie_embeddings=False,
    initializer='lecun_normal',
    dtype='bfloat16',
  )

  def test_smoke_shrinks_sizes_and_preserves_slots(self):
    large = complete(model=dict(layers=40, width=4096, heads=32, **self.SLOTS))
    small = resolve_config(smoke(large))
    assert {name: small.model[name] for name in self.SLOTS} == self.SLOTS
    assert (small.model.width, small.model.layers, small.training.steps, small.data.length) == (32, 2, 4, 32)
    Experiment(small).build_model(300)
    validate_run(Experiment(small), 8)

  @pytest.mark.parametrize(
    'heads, kv_heads, small',
    [(32, None, (4, 4)), (32, 32, (4, 4)), (32, 8, (4, 2)), (32, 1, (4, 1)), (1, None, (4, 4))],
  )
  def test_smoke_preserves_the_kind_of_head_grouping(self, heads, kv_heads, small):
    large = complete(model=dict(width=64, heads=heads, kv_heads=kv_heads))
    model = resolve_config(smoke(large)).model
    assert (model.heads, model.kv_heads, model.head_width) == (*small, 8)

  @pytest.mark.parametrize('width, small', [(None, 32), (64, 32), (48, 16)])
  def test_smoke_preserves_a_narrow_embedding(self, width, small):
    large = complete(model=dict(width=64, heads=8, embedding_width=width))
    assert resolve_config(large).model.embedding_width == (width or 64)
    assert resolve_config(smoke(large)).model.embedding_width == small

  def test_smoke_shrinks_blocks(self):
    blocks = dict(
      local=dict(mask='causal & window(8)', heads=16, kv_heads=4, head_width=100, feed_forward_width=999),
      far=dict(position='none', heads=8),
      one=dict(kv_heads=1),
    )
    small = resolve_config(
      smoke(
        complete(
          model=dict(layers=30, width=512, heads=8, pattern=('local', 'local', 'far', 'one'), blocks=blocks)
        )
      )
    )
    model = small.model
    assert model.layers == 4 and model.pattern == ('local', 'local', 'far', 'one')
    sizes = {
      name: (b.heads, b.kv_heads, b.head_width, b.feed_forward_width) for name, b in model.blocks.items()
    }
    assert sizes == dict(local=(4, 2, 8, 128), far=(4, 4, 8, 128), one=(4, 1, 8, 128))
    assert model.blocks.local.mask == 'causal & window(8)' and model.blocks.far.position == 'none'
    Experiment(small).build_model(300)

  def test_smoke_preserves_field_types(self):
    assert_rejected(
      lambda: resolve_with_overrides(smoke(complete()), ['--config.model.kv_heads=x']), 'must be of type int'
    )

  def test_smoke_does_not_change_its_argument(self):
    config = complete()
    smoke(config)
    assert config == complete()

  def test_smoke_as_an_argument_of_a_file(self, root):
    small = load_config(f'{root}/configs/lm.py:smoke')
    assert small == smoke(load_config(f'{root}/configs/lm.py'))


class TestLoad:
  def test_invalid_files_are_rejected(self, tmp_path):
    assert_rejected(lambda: load_config('nowhere.py'), '--config=nowhere.py is no file; use the path of one')
    (tmp_path / 'empty.py').write_text('')
    assert_rejected(lambda: load_config(f'{tmp_path}/empty.py'), 'defines no get_config(arg)')
    (tmp_path / 'typo.py').write_text('def get_config(arg): return dict(model=dict(hedas=4))')
    assert_rejected(
      lambda: load_config(f'{tmp_path}/typo.py'), 'config.model.hedas=4', "did you mean 'heads'?"
    )

  def test_a_name_without_its_suffix_is_answered_with_the_file(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path('mine.py').touch()
    assert_rejected(lambda: load_config('mine'), '--config=mine is neither a path nor a name; use', 'mine.py')

  def test_get_config_receives_the_argument_without_smoke(self, tmp_path):
    (tmp_path / 'c.py').write_text('def get_config(arg): return dict(objective=repr(arg))')
    assert load_config(f'{tmp_path}/c.py').objective == "''"
    assert load_config(f'{tmp_path}/c.py:a,smoke,b').objective == "'a,b'"

  def test_an_overlay_replaces_fields(self, root, tmp_path):
    (tmp_path / 'over.py').write_text('def get_config(arg): return dict(model=dict(heads=int(arg)), seed=7)')
    (tmp_path / 'base.py').write_text(
      "def get_config(arg): return dict(model=dict(heads=4, blocks=dict(a=dict(mask='full'))), seed=1)"
    )
    (tmp_path / 'blocks.py').write_text(
      'def get_config(arg): return dict(model=dict(blocks=dict(a=dict(heads=2))))'
    )
    expected = load_config(f'{tmp_path}/base.py')
    expected.model.heads, expected.model.blocks.a.heads, expected.seed = 2, 2, 7
    assert load_config(f'{tmp_path}/base.py+{tmp_path}/over.py:2+{tmp_path}/blocks.py') == expected
    small = load_config(f'{tmp_path}/base.py:smoke+{tmp_path}/over.py:2+{tmp_path}/blocks.py')
    assert (
      small
      == smoke(expected)
      == load_config(f'{tmp_path}/base.py+{tmp_path}/over.py:2,smoke+{tmp_path}/blocks.py')
    )
    (tmp_path / 'config.json').write_text(to_json(expected))
    assert load_config(f'{tmp_path}/config.json+{tmp_path}/over.py:2') == expected
    assert_rejected(
      lambda: load_config(f'{tmp_path}/base.py+{tmp_path}/config.json'),
      'overlays another config with the complete config',
      'name that file first',
    )
