"""Configs: completion, overrides, resolution, smoke size, comparison, and validation before compiling."""

import json

import jax
import pytest
from ml_collections import ConfigDict

from tests.conformance.tiny import boxed, decoder
from tfm.commands.cli import resolve_with_overrides
from tfm.config import overlay
from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.load import load_config, smoke, to_json
from tfm.config.resolve import resolve_config
from tfm.config.schema import BLOCK_FIELDS, default_config, leaves
from tfm.config.validate import validate_run
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


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
      ('--config.model.mask=3', 'model.mask', '3'),
      ('--config.mesh.tensor=-1', 'mesh.tensor', -1),
    ],
  )
  def test_text_is_converted_to_the_type_of_the_field(self, word, path, value):
    config = complete(model=dict(heads=4))
    resolved = resolve_with_overrides(config, [word])
    actual = dict(leaves(resolved))[path]
    assert actual == value and type(actual) is type(value)

  def test_the_value_may_be_the_next_argument(self):
    assert override('--config.model.width', '48').model.width == 48

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
    assert_rejected(lambda: load_config('nowhere.py'), '--config=nowhere.py is no file', 'get_config')
    (tmp_path / 'empty.py').write_text('')
    assert_rejected(lambda: load_config(f'{tmp_path}/empty.py'), 'defines no get_config(arg)')
    (tmp_path / 'typo.py').write_text('def get_config(arg): return dict(model=dict(hedas=4))')
    assert_rejected(
      lambda: load_config(f'{tmp_path}/typo.py'), 'config.model.hedas=4', "did you mean 'heads'?"
    )

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
      data=dict(reader_threads=9),
      training=dict(
        log_every=1, evaluate_every=7, evaluation_batches=3, keep_checkpoints=9, profile=2, loss_chunk=64
      ),
      model=TWO | dict(remat='full', kernel='other'),
    )
    old, new = complete(model=TWO), complete(**free)
    new.model.blocks.local.kernel = 'other'
    assert list_differences(old, new) == []

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


class TestValidation:
  """Error messages name field, value and remedy; nothing is compiled."""

  @pytest.mark.parametrize(
    'model, parts',
    [
      (
        dict(width=48, heads=5),
        ['config.model.heads=5', 'config.model.width=48', 'use a divisor, or set config.model.head_width'],
      ),
      (dict(heads=0), ['config.model.heads=0 must be at least 1']),
      (dict(blocks=dict(a=dict(heads=5)), pattern=('a',)), ['config.model.blocks.a.heads=5', 'head_width']),
      (dict(heads=6, kv_heads=4), ['config.model.kv_heads=4 must divide config.model.heads=6']),
      (dict(heads=6, kv_heads=0), ['config.model.kv_heads=0']),
      (dict(heads=2, kv_heads=4), ['config.model.kv_heads=4 must divide config.model.heads=2']),
      (
        dict(blocks=dict(a=dict(heads=6, kv_heads=4)), pattern=('a',)),
        ['config.model.blocks.a.kv_heads=4 must divide'],
      ),
      (dict(head_width=0), ['config.model.head_width=0 must be at least 1']),
      (dict(feed_forward_width=-1), ['config.model.feed_forward_width=-1 must be at least 1']),
      (dict(width=6, heads=2), ["config.model.position='rope'", 'head width is 3', 'choose an even one']),
      (
        dict(position='learned(rows=100)'),
        ["config.model.position='learned(rows=100)'", 'data.length=256', 'at least 256 rows'],
      ),
      (
        dict(mask='window(2)'),
        ["config.model.mask='window(2)' lets a token attend to later ones", "use 'causal & (window(2))'"],
      ),
      (dict(mask='~causal'), ["config.model.mask='~causal'"]),
      (dict(mask='causal | ~window(200)'), ['lets a token attend to later ones']),
      (
        dict(blocks=dict(a=dict(mask='window(2)')), pattern=('a',)),
        ["config.model.blocks.a.mask='window(2)'"],
      ),
      (dict(mixer='sofmax'), ["config.model.mixer='sofmax'", "did you mean 'softmax'?"]),
      (
        dict(mixer='softmax(query_init=0.0)'),
        ["config.model.mixer='softmax", 'query_init=0.0 must be above 0'],
      ),
      (
        dict(mixer='softmax(biases="qx")'),
        ["config.model.mixer='softmax", "biases='qx' must be letters of 'qkvo'"],
      ),
      (dict(mixer='softmax(biases="qq")'), ["biases='qq' must be letters of 'qkvo', each at most once"]),
      (dict(position='rop'), ["config.model.position='rop'", "did you mean 'rope'?"]),
      (dict(mask='causl'), ["config.model.mask='causl'", "did you mean 'causal'?"]),
      (dict(score='dott'), ["config.model.score='dott'", "did you mean 'dot'?"]),
      (dict(kernel='dens'), ["config.model.kernel='dens'", "did you mean 'dense'?"]),
      (dict(norm='layernrom'), ["config.model.norm='layernrom'", "did you mean 'layernorm'?"]),
      (
        dict(norm='rmsnorm(bias=True)'),
        ["config.model.norm='rmsnorm(bias=True)' passes 'bias'; rmsnorm takes (epsilon=1e-06)"],
      ),
      (
        dict(norm='layernorm(axis="kv")'),
        ["passes 'axis'; layernorm takes (epsilon=1e-05, bias=True, scale=True)"],
      ),
      (dict(norm='layernorm(bias=1)'), ['passes bias=1, which must be of type bool']),
      (dict(feed_forward='swigelu'), ["config.model.feed_forward='swigelu'", "did you mean 'swiglu'?"]),
      (
        dict(feed_forward='none', feed_forward_width=64),
        ["config.model.feed_forward_width=64 has no effect with feed_forward='none'"],
      ),
      (
        dict(feed_forward='gelu', feed_forward_width=0),
        ['config.model.feed_forward_width=0 must be at least 1'],
      ),
      (
        dict(feed_forward='none', residual='parallel'),
        [
          "config.model.residual='parallel' adds a mixer and a feed-forward layer at once",
          "use 'sequential'",
        ],
      ),
      (
        dict(feed_forward='none', residual='parallel_one_norm'),
        ["config.model.residual='parallel_one_norm' adds"],
      ),
      (
        dict(norm_placement='prenorm'),
        ["config.model.norm_placement='prenorm'", 'known: pre, post, sandwich'],
      ),
      (dict(residual='paralel'), ["config.model.residual='paralel'", "did you mean 'parallel'?"]),
      (
        dict(residual='parallel', norm_placement='post'),
        ["config.model.residual='parallel'", "norm_placement='pre'"],
      ),
      (
        dict(residual='parallel_one_norm', norm_placement='sandwich'),
        ["config.model.residual='parallel_one_norm' is defined for norm_placement='pre', not 'sandwich'"],
      ),
      (dict(initializer='norml'), ["config.model.initializer='norml'", "did you mean 'normal'?"]),
      (dict(embedding_initializer='norml'), ["config.model.embedding_initializer='norml'"]),
      (dict(dtype='bf16'), ["config.model.dtype='bf16'", 'known: float32, bfloat16, float16']),
      (dict(remat='some'), ["config.model.remat='some'", 'known: none, full']),
      (dict(blocks=dict(a=dict(position='rop')), pattern=('a',)), ["config.model.blocks.a.position='rop'"]),
      (
        dict(pattern=('lcoal',), blocks=dict(local={})),
        ["config.model.pattern names 'lcoal'", "did you mean 'local'?"],
      ),
      (
        dict(pattern=('local',), blocks=dict(local={}, far={})),
        ['config.model.blocks.far', "config.model.pattern=('local',)", 'delete it'],
      ),
      (dict(blocks=dict(far={})), ['config.model.blocks.far is not in config.model.pattern=()']),
      (
        dict(layers=1, pattern=('a', 'b'), blocks=dict(a={}, b={})),
        ['config.model.pattern has 2 blocks', 'config.model.layers=1'],
      ),
      (dict(layers=0), ['config.model.layers=0 must be at least 1']),
      (dict(width=0), ['config.model.width=0']),
      (dict(vocab_multiple=0), ['config.model.vocab_multiple=0']),
      (dict(embedding_width=0), ['config.model.embedding_width=0 must be at least 1']),
      (dict(output_soft_cap=-1.0), ['config.model.output_soft_cap=-1.0 must be 0 (none) or more']),
      (dict(dropout=dict(attention=1.0)), ['config.model.dropout.attention=1.0 must lie in [0, 1)']),
      (dict(dropout=dict(embedding=-0.1)), ['config.model.dropout.embedding=-0.1']),
    ],
  )
  def test_invalid_models_are_rejected(self, model, parts):
    assert_rejected(lambda: Experiment(resolved(**model)).build_model(100), *parts)

  def test_a_mask_with_far_future_tokens_is_rejected(self):
    config = complete(data=dict(length=2048), model=dict(mask='causal | ~window(1000)'))
    assert_rejected(
      lambda: Experiment(resolve_config(config)).build_model(100), 'lets a token attend to later ones'
    )

  @pytest.mark.parametrize(
    'sections, parts',
    [
      (
        dict(training=dict(batch_size=12)),
        ['config.training.batch_size=12', '8 devices', 'use a multiple of 8'],
      ),
      (
        dict(training=dict(batch_size=16, gradient_accumulation=4)),
        ['config.training.batch_size=16 in 4 microbatches', 'use a multiple of 32'],
      ),
      (
        dict(training=dict(batch_size=32, gradient_accumulation=3)),
        ['config.training.gradient_accumulation=3', 'config.training.batch_size=32'],
      ),
      (dict(mesh=dict(data=3)), ['mesh data=3 needs 3 devices', 'there are 8', 'set mesh.data=-1']),
      (dict(mesh=dict(tensor=3)), ['needs a multiple of 3 devices', 'there are 8']),
      (dict(mesh=dict(data=2, fsdp=2, tensor=4)), ['needs 16 devices']),
      (dict(mesh=dict(data=-1, fsdp=-1)), ['mesh.data and mesh.fsdp are both -1']),
      (dict(mesh=dict(data=0)), ['mesh.data=0 must be at least 1']),
      (dict(rules=dict(embed='fdsp')), ["config.rules.embed='fdsp'", "did you mean 'fsdp'?"]),
      (dict(training=dict(steps=0)), ['config.training.steps=0 must be at least 1']),
      (dict(optimizer=dict(no_decay='(')), ["config.optimizer.no_decay='('", 'regular expression']),
      (dict(data=dict(length=0)), ['config.data.length=0']),
    ],
  )
  def test_invalid_runs_are_rejected(self, sections, parts):
    assert_rejected(lambda: validate_run(Experiment(resolve_config(complete(**sections))), 8), *parts)

  def test_a_divisible_batch_is_accepted(self):
    for mesh in (dict(), dict(fsdp=4), dict(tensor=8), dict(data=2, fsdp=2, tensor=2)):
      validate_run(
        Experiment(
          resolve_config(complete(training=dict(batch_size=32, gradient_accumulation=4), mesh=mesh))
        ),
        8,
      )
    # Four of eight devices divide the batch; the other mesh axis is `tensor`.
    validate_run(Experiment(resolve_config(complete(training=dict(batch_size=4), mesh=dict(tensor=2)))), 8)

  def test_a_mesh_that_does_not_divide_the_model_is_rejected(self):
    def check(**model):
      mesh = meshes.make(dict(tensor=4, data=-1))
      sharding.validate_divisibility(
        boxed(decoder(bias=False, **model)), mesh, sharding.parse_rules(default_config().rules)
      )

    check(kv_heads=4)
    assert_rejected(
      lambda: check(kv_heads=2),
      "'kv_heads' of the parameter stack/layers/block_0/mixer/k/kernel into 4 shards",
      'do not divide its size 2',
      'rules.kv_heads',
    )


@pytest.mark.parametrize(
  'mixer', ['reformer(buckets=2, chunk=4)', 'softmax', 'latent(rank=8, rope_width=4)', 'mamba']
)
def test_a_decoder_is_built_with_every_causal_mixer(mixer):
  """The check for future tokens accepts these mixers."""
  position = 'none' if mixer.startswith(('mamba', 'reformer')) else 'rope'
  assert Experiment(resolved(mixer=mixer, position=position)).build_model(100).vocab == 100
