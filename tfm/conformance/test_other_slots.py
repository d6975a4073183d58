"""Optimizers, objectives, packings, sources, tokenizers, measures: every file builds a valid variant."""

import inspect
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import spec
from tfm.config.assemble.models import ARCHITECTURES
from tfm.conformance import collect
from tfm.data.sources.protocol import build_source
from tfm.data.sources.stdlib import Stdlib
from tfm.data.tokenizers.protocol import load
from tfm.masks.protocol import LAYOUTS


# Values of required arguments that stand for files and sizes; building reads no file.
PLACEHOLDERS = dict(str='path', int=300)
# What the config gives besides a spec.
CONTEXT = {
  'objective': dict(chunk=0, layout='contiguous', recurrence=0, shape=()),
  'source': dict(sources={'some': Stdlib()}),
}
TEXTS = ('the cat sat on the mat', 'zwölf Boxkämpfer jagen Viktor', 'a b c')


def minimal_spec(slot, name):
  """The bare name, or the name with placeholders for required arguments."""
  kind = collect.variant(slot, name)
  required = set(collect.required(kind, collect.ALL_SLOTS[slot][1])) - set(CONTEXT.get(slot, ()))
  arguments = [
    'some=1.0' if p.kind is p.VAR_KEYWORD else f'{p.name}={PLACEHOLDERS[spec.format_type(p.annotation)]!r}'
    for p in inspect.signature(kind).parameters.values()
    if p.name in required
  ]
  return f'{name}({", ".join(arguments)})' if arguments else name


def build(slot, name):
  return spec.build(minimal_spec(slot, name), *collect.ALL_SLOTS[slot], **CONTEXT.get(slot, {}))


@pytest.mark.parametrize(
  'slot, name', [(slot, name) for slot in collect.OTHER_SLOTS for name in collect.variants(slot)]
)
class TestEveryFile:
  def test_it_builds_an_equal_and_hashable_value(self, slot, name):
    variant = build(slot, name)
    assert isinstance(variant, collect.ALL_SLOTS[slot][1])
    assert variant == build(slot, name) and hash(variant) == hash(build(slot, name))

  def test_its_module_and_its_class_are_documented(self, slot, name):
    kind = collect.variant(slot, name)
    assert (
      inspect.getmodule(kind).__doc__ and kind.__doc__ and not kind.__doc__.startswith(f'{kind.__name__}(')
    )


@pytest.mark.parametrize('name', collect.variants('optimizer'))
class TestOptimizer:
  def test_updates_descend_and_have_the_shapes_of_the_parameters(self, name):
    params = {'kernel': jnp.array([[1.0, -2.0], [3.0, 0.5]]), 'scale': jnp.ones(2)}
    transformation = build('optimizer', name).transformation(
      lambda step: 1e-2, lambda p: jax.tree.map(lambda _: True, p)
    )
    state = transformation.init(params)
    updates, state = transformation.update(params, state, params)  # the gradient of |x|² / 2 is x
    assert jax.tree.map(lambda x: (x.shape, x.dtype), updates) == jax.tree.map(
      lambda x: (x.shape, x.dtype), params
    )
    assert all(jnp.isfinite(u).all() for u in jax.tree.leaves(updates))
    assert all(
      (u * x <= 0).all() and (u != 0).any() for u, x in zip(*map(jax.tree.leaves, (updates, params)))
    )
    zeros = jax.tree.map(jnp.zeros_like, params)
    assert all(jnp.isfinite(u).all() for u in jax.tree.leaves(transformation.update(zeros, state, params)[0]))


@pytest.mark.parametrize('name', collect.variants('objective'))
class TestObjective:
  def test_what_it_declares_is_known(self, name):
    objective = build('objective', name)
    assert objective.architectures and set(objective.architectures) <= set(ARCHITECTURES)
    assert set(objective.supported_layouts) <= set(LAYOUTS) and objective.supported_layouts
    assert all(isinstance(kind, tuple) and kind for kind in objective.document_kinds)
    assert objective.mask_fields <= {'prefix'} and 0 <= objective.masked_fraction < 1

  def test_the_packing_that_it_suggests_serves_it(self, name):
    objective = build('objective', name)
    packing = spec.build(objective.suggested_packing, *collect.ALL_SLOTS['packing'])
    assert packing.layout in objective.supported_layouts
    assert set(packing.document_kinds) & set(objective.document_kinds)
    assert objective.required_fields <= packing.extra_fields

  @pytest.mark.parametrize('key', [None, jax.random.key(0)], ids=['evaluation', 'training'])
  def test_its_context_has_its_layout_and_only_training_has_dropout(self, name, key):
    objective = build('objective', name)
    batch = jax.tree.map(lambda x: x[None], objective.padding_row(8))
    with pytest.raises(Called) as called:
      objective(FirstCall(), {}, batch, key)
    contexts, has_key = called.value.args
    trains = [context.train for context in contexts]
    assert (trains, has_key) == ([key is not None] * len(contexts), key is not None), (
      'context.train, and whether there is a key'
    )
    assert {context.layout for context in contexts} == {objective.layout}


class Called(Exception):
  """The contexts of a model's call, and whether there was a key for its dropout."""


class FirstCall(nn.Module):
  """A model of any architecture that raises `Called`."""

  def __call__(self, images, times, classes, context):
    raise Called([context], self.has_rng('dropout'))

  def encode(self, source, context):
    return context

  def features(self, inputs, context, types_or_caches=None, *memory):
    raise Called([context, *memory], self.has_rng('dropout'))

  def embed_texts(self, tokens, context):
    raise Called([context], self.has_rng('dropout'))

  def classify(self, *args):
    pass

  @nn.nowrap
  def stack(self):
    return types.SimpleNamespace(cache_type='full')


@pytest.mark.parametrize('name', collect.variants('packing'))
def test_what_a_packing_declares_is_known(name):
  packing = build('packing', name)
  assert packing.layout in LAYOUTS and isinstance(packing.extra_fields, frozenset)
  assert packing.document_kinds and all(isinstance(kind, tuple) and kind for kind in packing.document_kinds)
  with pytest.raises(ValueError, match='length=0'):
    packing.evaluation_rows(None, 0)


@pytest.mark.parametrize('name', collect.variants('source'))
class TestSource:
  def test_its_spec_builds_it_again(self, name):
    source = build('source', name)
    assert spec.build(source.spec, *collect.ALL_SLOTS['source'], **CONTEXT['source']) == source

  def test_some_packing_and_some_objective_read_its_documents(self, name):
    fields = build('source', name).fields
    packings = [build('packing', name) for name in collect.variants('packing')]
    objectives = [build('objective', name) for name in collect.variants('objective')]
    words = spec.build(
      'classification(classes=8, words=True)', *collect.ALL_SLOTS['objective'], **CONTEXT['objective']
    )
    assert any(fields in packing.document_kinds for packing in packings)
    assert any(fields in objective.document_kinds for objective in [*objectives, words])

  def test_the_path_of_its_files_is_refused_with_its_spec(self, name):
    for suffix in collect.variant('source', name).suffixes:
      with pytest.raises(ValueError, match=rf'is a path, not a source; use .*{name}\("some/file{suffix}"'):
        build_source(f'some/file{suffix}')

  def test_only_images_have_an_image_shape(self, name):
    source = build('source', name)
    assert (len(source.image_shape) == 3) == ('image' in source.fields)


def needs_no_file(tokenizer):
  """Whether a tokenizer is trained on texts alone; False for one whose package is missing, too."""
  try:
    return minimal_spec('tokenizer', tokenizer) == tokenizer
  except spec.SpecError:
    return False


TOKENIZERS = [name for name in collect.variants('tokenizer') if needs_no_file(name)]


@pytest.mark.parametrize('name', TOKENIZERS)
class TestTokenizer:
  def test_it_is_trained_or_can_be_trained(self, name):
    tokenizer = build('tokenizer', name)
    assert tokenizer.is_trained or tokenizer.needs_training
    assert tokenizer.train(TEXTS).is_trained

  def test_a_lossless_tokenizer_restores_the_text(self, name):
    tokenizer = build('tokenizer', name).train(TEXTS)
    for text in TEXTS:
      tokens = tokenizer.encode(text)
      assert tokens.dtype == np.int32 and tokens.ndim == 1 and tokenizer.eos_id not in tokens
      assert tokens.max() < tokenizer.vocab_size == len(tokenizer.token_bytes)
      assert not tokenizer.is_lossless or tokenizer.decode(tokens) == text

  def test_its_state_restores_it(self, name):
    tokenizer = build('tokenizer', name).train(TEXTS)
    assert load(tokenizer.state()) == tokenizer


@pytest.mark.parametrize('name', collect.variants('measure'))
def test_the_costs_of_a_measure_are_names_of_metrics(name):
  costs = build('measure', name).cost_metrics
  assert isinstance(costs, tuple) and all(isinstance(cost, str) and cost for cost in costs)
