"""Decoding with a cache is decoding without one, whatever stands beside, before or around a row."""

import jax
import numpy as np
import pytest

from tests.decoding.conftest import LENGTH, VOCAB, follows, penalized, tiny_model
from tests.models import pairs
from tfm.decoding import loop
from tfm.decoding.sampling import Sampling
from tfm.decoding.unrolled import unrolled
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


MASKS = ('causal', 'causal & window(3)')
WARM = Sampling(temperature=1.3, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2)


def same(a, b):
  return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


# Every pair of settings once or more, in nine models instead of 36.
@pytest.mark.parametrize(
  'position, kv_heads, mask, scan',
  [
    (position, kv_heads, MASKS[(i + j) % 2], (i + 2 * j) % 3 != 1)
    for i, position in enumerate(['none', 'learned', 'rope'])
    for j, kv_heads in enumerate([1, 2, 4])
  ],
)
def test_greedy_is_the_rollout_without_a_cache(position, kv_heads, mask, scan, prompts):
  """To the last position that the learned table has; what is written last is never read."""
  model, params = tiny_model(position=position, mask=mask, kv_heads=kv_heads, scan=scan)
  tokens = LENGTH - max(map(len, prompts)) + 1
  out = loop.complete(model, params, prompts, max_tokens=tokens, eos=None)
  assert [len(new) for new in out] == [tokens] * len(prompts)
  assert all(follows(model, params, prompt, new) for prompt, new in zip(prompts, out))
  assert len({new.tobytes() for new in out}) > 1


def test_a_repetition_penalty_looks_at_the_prompt_and_what_was_written(tiny, prompts):
  """In every piece and chunk."""
  free, out = (
    loop.complete(*tiny, prompts, max_tokens=24, eos=None, sampling=Sampling(repetition_penalty=penalty))
    for penalty in (1.0, 1.5)
  )
  assert all(follows(*tiny, prompt, new, 1.5) for prompt, new in zip(prompts, out))
  assert sum(len(set(new)) for new in out) > sum(len(set(new)) for new in free)


@pytest.mark.slow
def test_a_repetition_penalty_does_not_look_at_the_source():
  model, params = pairs.made()
  source, prompt = np.arange(10, 18, dtype=np.int32), np.array([2, 4], np.int32)
  [new] = loop.complete(
    model,
    params,
    [prompt],
    sources=[source],
    max_tokens=6,
    eos=None,
    sampling=Sampling(repetition_penalty=1.5),
  )
  read = np.append(prompt, new)
  rows = pairs.logits(
    model,
    params,
    read[None, :-1],
    pairs.context(np.ones((1, 7))),
    source[None],
    pairs.context(np.ones((1, 8))),
  )[0]
  assert [np.argmax(penalized(rows[n - 1], read[:n], 1.5)) for n in range(2, 8)] == list(new)
  assert [np.argmax(penalized(rows[n - 1], [*source, *read[:n]], 1.5)) for n in range(2, 8)] != list(new)


@pytest.mark.parametrize('pattern', [(), ('local', 'global_')])
def test_unrolled_is_the_same_function(pattern, prompts):
  """With the pattern of two, three layers are a scanned turn and a rest."""
  blocks = dict(local=dict(mask='causal & window(3)'), global_=dict(position='none'))
  model, params = tiny_model(layers=3, pattern=pattern, blocks=blocks if pattern else {})
  flat, flat_params = unrolled(model, params)
  assert not flat.stack().scan and flat is unrolled(model, params)[0]
  assert unrolled(flat, flat_params) == (flat, flat_params)
  assert sum(x.size for x in jax.tree.leaves(params)) == sum(x.size for x in jax.tree.leaves(flat_params))
  options = dict(max_tokens=16, eos=None, sampling=WARM, seed=3)
  assert same(
    loop.complete(model, params, prompts, **options), loop.complete(flat, flat_params, prompts, **options)
  )


@pytest.mark.parametrize('sampling', [Sampling(), WARM], ids=['greedy', 'warm'])
def test_a_row_does_not_depend_on_its_batch(tiny, prompts, sampling):
  options = dict(max_tokens=16, eos=0, sampling=sampling, seed=5)
  together = loop.complete(*tiny, prompts, **options)
  assert same(together[1:4], [loop.complete(*tiny, [prompt], **options)[0] for prompt in prompts[1:4]])
  assert same(together[::-1], loop.complete(*tiny, prompts[::-1], **options))


def test_samples_of_a_prompt_differ_and_are_numbered(tiny, prompts):
  options = dict(max_tokens=16, eos=None, sampling=WARM)
  four = loop.complete(*tiny, [prompts[1]] * 4, samples=range(4), **options)
  assert len({new.tobytes() for new in four}) == 4
  assert same(four[2:3], loop.complete(*tiny, [prompts[1]], samples=[2], **options))
  other = loop.complete(*tiny, [prompts[1]], seed=1, **options)
  assert not same(four[:1], other)


@pytest.mark.parametrize('chunk', [1, 5])
def test_chunks_do_not_matter(tiny, prompts, chunk):
  options = dict(max_tokens=16, eos=0, sampling=WARM)
  whole = loop.complete(*tiny, prompts, **options)
  chunks = list(loop.generate(*tiny, prompts, chunk=chunk, **options))
  assert all(len(new) <= chunk for made in chunks for new in made)
  assert same(whole, [np.concatenate(row) for row in zip(*chunks)])


@pytest.mark.parametrize('pieces', [(32,), (8, 3)])
def test_pieces_do_not_matter(tiny, prompts, pieces):
  options = dict(max_tokens=16, eos=None)
  assert same(
    loop.complete(*tiny, prompts, **options), loop.complete(*tiny, prompts, pieces=pieces, **options)
  )


def test_stops_at_the_end_of_text(tiny, prompts):
  """The end-of-text token is taken to be one that greedy decoding is known to write."""
  free = loop.complete(*tiny, prompts, max_tokens=16, eos=None)
  eos = int(free[2][5])
  ended = loop.complete(*tiny, prompts, max_tokens=16, eos=eos)
  assert same(ended, [new[: loop.until(new, eos)] for new in free]) and len(ended[2]) <= 5
  chunks = list(loop.generate(*tiny, prompts[2:3], max_tokens=16, eos=eos, chunk=5))
  assert len(chunks) == len(ended[2]) // 5 + 1 < 4


def test_an_end_of_text_in_the_prompt_ends_nothing(tiny, prompts):
  free = loop.complete(*tiny, prompts[:1], max_tokens=16, eos=None)
  eos = int(prompts[0][-1])
  assert eos not in free[0] and same(free, loop.complete(*tiny, prompts[:1], max_tokens=16, eos=eos))


def test_the_mesh_does_not_matter(tiny, prompts):
  """Six rows on four data ways: padded to eight; heads cut in two."""
  options = dict(max_tokens=16, eos=0, sampling=WARM)
  alone = loop.complete(*tiny, prompts, **options)
  rules = sharding.parse_rules(dict(batch='data', heads='tensor', kv_heads='tensor', mlp='tensor'))
  with sharding.context(meshes.make(dict(data=4, tensor=2)), rules):
    assert sharding.shard_count(sharding.mesh_axes_of('batch')) == 4
    assert same(alone, loop.complete(*tiny, prompts, **options))


def test_compiles_little_for_many_lengths():
  """Many lengths, samplings and numbers of tokens: a few sizes of each function."""
  model, params = tiny_model(layers=1)
  before = loop.read._cache_size(), loop.decode._cache_size()
  for length in range(1, 34):
    sampling = Sampling(0.1 * (length % 3), length % 5, 1 - 0.01 * (length % 7), 0.01 * (length % 2))
    options = dict(max_tokens=1 + length % 4, eos=0, sampling=sampling)
    loop.complete(model, params, [np.ones(length, np.int32)], **options)
  sizes = 3  # of caches: 16, 32 and 48 slots
  assert loop.decode._cache_size() - before[1] == sizes
  assert loop.read._cache_size() - before[0] == sizes - 1  # the shortest prompts are not read ahead
  for penalty in (0.9, 1.1, 2):
    loop.complete(model, params, [[1]], max_tokens=4, eos=0, sampling=Sampling(repetition_penalty=penalty))
  assert loop.decode._cache_size() - before[1] == sizes + 1


def test_few_buckets():
  sizes = [loop.buckets(n) for n in range(1, 4097)]
  assert all(n <= size <= max(n + 1, 1.25 * n) for n, size in enumerate(sizes, 1))
  assert len(set(sizes)) <= 4 * 12 and sorted(sizes) == sizes
  assert loop.buckets(1, 16) == 16 and loop.buckets(17, 16) == 32 and loop.buckets(257, 16) == 320


@pytest.mark.parametrize('n, pieces', [(0, []), (1, [4]), (16, [16]), (39, [16, 16, 4, 4])])
def test_cut(n, pieces):
  assert loop.cut(n, (16, 4)) == pieces


def test_no_further_than_the_learned_positions(prompts):
  """64 rows: a prompt of 30 tokens leaves room for 35 more."""
  model, params = tiny_model(position='learned')
  with pytest.raises(ValueError, match='=36 after a prompt of 30 .* 65 .*Learned has 64.*max_tokens=35'):
    loop.generate(model, params, prompts, max_tokens=36, eos=None)
  with pytest.raises(ValueError, match='shorten the prompt'):
    loop.generate(model, params, [np.ones(65, np.int32)], max_tokens=1, eos=None)


@pytest.mark.parametrize(
  'given, message',
  [
    (dict(max_tokens=0), 'max_tokens=0'),
    (dict(prompts=[]), 'prompts is empty'),
    (dict(prompts=[[1], []]), r'prompts\[1\] is empty'),
    (dict(prompts=[[VOCAB]]), 'outside of the vocabulary of 37'),
    (dict(sampling=Sampling(temperature=-1)), 'temperature=-1'),
    (dict(sampling=Sampling(temperature=float('nan'))), 'temperature=nan'),
    (dict(sampling=Sampling(top_k=-1)), 'top_k=-1'),
    (dict(sampling=Sampling(top_p=0)), 'top_p=0'),
    (dict(sampling=Sampling(top_p=1.1)), 'top_p=1.1'),
    (dict(sampling=Sampling(min_p=1.1)), 'min_p=1.1'),
    (dict(sampling=Sampling(repetition_penalty=0)), 'repetition_penalty=0'),
  ],
)
def test_refusals(tiny, given, message):
  with pytest.raises(ValueError, match=message):
    loop.generate(*tiny, **(dict(prompts=[[1]], max_tokens=4, eos=0) | given))


def test_a_model_that_is_no_use_says_so(tiny):
  model, params = tiny
  broken = jax.tree.map(lambda x: x * float('nan'), params)
  with pytest.raises(ValueError, match='not numbers'):
    loop.complete(model, broken, [[1]], max_tokens=16, eos=0)
