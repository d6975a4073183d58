"""Decoding with a cache equals decoding without one, whatever the batch, the chunks and the mesh."""

import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from tests.decoding.tiny import LENGTH, VOCAB, is_greedy, penalize_repetition, tiny_model
from tests.models import pairs
from tfm.decoding import loop
from tfm.decoding.sampling import Sampling
from tfm.decoding.unroll_layers import unroll_layers
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


MASKS = ('causal', 'causal & window(3)')
SAMPLED = Sampling(temperature=1.3, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2)


def same(a, b):
  return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


# Every pair of settings at least once, in nine models instead of 36.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'position, kv_heads, mask, scan',
  [
    (position, kv_heads, MASKS[(i + j) % 2], (i + 2 * j) % 3 != 1)
    for i, position in enumerate(['none', 'learned', 'rope'])
    for j, kv_heads in enumerate([1, 2, 4])
  ],
)
def test_greedy_equals_greedy_without_a_cache(position, kv_heads, mask, scan, prompts):
  """Up to the last position of the learned table; the last new token is not read."""
  model, params = tiny_model(position=position, mask=mask, kv_heads=kv_heads, scan=scan)
  tokens = LENGTH - max(map(len, prompts)) + 1
  out = loop.generate_all(model, params, prompts, max_tokens=tokens, eos=None)
  assert [len(new) for new in out] == [tokens] * len(prompts)
  assert all(is_greedy(model, params, prompt, new) for prompt, new in zip(prompts, out))
  assert len({new.tobytes() for new in out}) > 1


def test_repetition_penalty_covers_prompt_and_new_tokens(tiny, prompts):
  """In all pieces and chunks."""
  free, out = (
    loop.generate_all(*tiny, prompts, max_tokens=24, eos=None, sampling=Sampling(repetition_penalty=penalty))
    for penalty in (1.0, 1.5)
  )
  assert all(is_greedy(*tiny, prompt, new, 1.5) for prompt, new in zip(prompts, out))
  assert sum(len(set(new)) for new in out) > sum(len(set(new)) for new in free)


@pytest.mark.slow
def test_repetition_penalty_ignores_the_source():
  model, params = pairs.make_model()
  source, prompt = np.arange(10, 18, dtype=np.int32), np.array([2, 4], np.int32)
  [new] = loop.generate_all(
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
  assert [np.argmax(penalize_repetition(rows[n - 1], read[:n], 1.5)) for n in range(2, 8)] == list(new)
  assert [
    np.argmax(penalize_repetition(rows[n - 1], [*source, *read[:n]], 1.5)) for n in range(2, 8)
  ] != list(new)


@pytest.mark.slow
@pytest.mark.parametrize('pattern', [(), ('local', 'global_')])
def test_unrolling_keeps_the_function(pattern, prompts):
  """With the pattern of two, three layers are one scanned repeat and a rest."""
  blocks = dict(local=dict(mask='causal & window(3)'), global_=dict(position='none'))
  model, params = tiny_model(layers=3, pattern=pattern, blocks=blocks if pattern else {})
  flat, flat_params = unroll_layers(model, params)
  assert not flat.stack().scan and flat is unroll_layers(model, params)[0]
  assert unroll_layers(flat, flat_params) == (flat, flat_params)
  assert sum(x.size for x in jax.tree.leaves(params)) == sum(x.size for x in jax.tree.leaves(flat_params))
  options = dict(max_tokens=16, eos=None, sampling=SAMPLED, seed=3)
  assert same(
    loop.generate_all(model, params, prompts, **options),
    loop.generate_all(flat, flat_params, prompts, **options),
  )


@pytest.mark.parametrize(
  'sampling', [pytest.param(Sampling(), marks=pytest.mark.slow), SAMPLED], ids=['greedy', 'sampled']
)
def test_a_row_does_not_depend_on_its_batch(tiny, prompts, sampling):
  options = dict(max_tokens=16, eos=0, sampling=sampling, seed=5)
  together = loop.generate_all(*tiny, prompts, **options)
  assert same(together[1:4], [loop.generate_all(*tiny, [prompt], **options)[0] for prompt in prompts[1:4]])
  assert same(together[::-1], loop.generate_all(*tiny, prompts[::-1], **options))


def test_samples_differ_and_depend_on_their_number(tiny, prompts):
  options = dict(max_tokens=16, eos=None, sampling=SAMPLED)
  four = loop.generate_all(*tiny, [prompts[1]] * 4, samples=range(4), **options)
  assert len({new.tobytes() for new in four}) == 4
  assert same(four[2:3], loop.generate_all(*tiny, [prompts[1]], samples=[2], **options))
  other = loop.generate_all(*tiny, [prompts[1]], seed=1, **options)
  assert not same(four[:1], other)


@pytest.mark.parametrize('chunk', [1, 5])
def test_chunk_size_does_not_change_the_tokens(tiny, prompts, chunk):
  options = dict(max_tokens=16, eos=0, sampling=SAMPLED)
  whole = loop.generate_all(*tiny, prompts, **options)
  chunks = list(loop.generate(*tiny, prompts, chunk=chunk, **options))
  assert all(len(new) <= chunk for chunk_tokens in chunks for new in chunk_tokens)
  assert same(whole, [np.concatenate(row) for row in zip(*chunks)])


@pytest.mark.parametrize('prefill_widths', [(32,), (8, 3)])
def test_prefill_widths_do_not_change_the_tokens(tiny, prompts, prefill_widths):
  options = dict(max_tokens=16, eos=None)
  assert same(
    loop.generate_all(*tiny, prompts, **options),
    loop.generate_all(*tiny, prompts, prefill_widths=prefill_widths, **options),
  )


def test_a_row_ends_at_eos(tiny, prompts):
  """EOS is set to a token that greedy decoding is known to produce."""
  free = loop.generate_all(*tiny, prompts, max_tokens=16, eos=None)
  eos = int(free[2][5])
  ended = loop.generate_all(*tiny, prompts, max_tokens=16, eos=eos)
  assert same(ended, [new[: loop.length_before(new, eos)] for new in free]) and len(ended[2]) <= 5
  chunks = list(loop.generate(*tiny, prompts[2:3], max_tokens=16, eos=eos, chunk=5))
  assert len(chunks) == len(ended[2]) // 5 + 1 < 4


def test_eos_in_the_prompt_does_not_end_a_row(tiny, prompts):
  free = loop.generate_all(*tiny, prompts[:1], max_tokens=16, eos=None)
  eos = int(prompts[0][-1])
  assert eos not in free[0] and same(free, loop.generate_all(*tiny, prompts[:1], max_tokens=16, eos=eos))


@pytest.mark.slow
def test_the_mesh_does_not_change_the_tokens(tiny, prompts):
  """Six rows on a data axis of 4, padded to eight; heads in two shards."""
  options = dict(max_tokens=16, eos=0, sampling=SAMPLED)
  alone = loop.generate_all(*tiny, prompts, **options)
  rules = sharding.parse_rules(dict(batch='data', heads='tensor', kv_heads='tensor', mlp='tensor'))
  with sharding.context(meshes.make(dict(data=4, tensor=2)), rules):
    assert sharding.shard_count(sharding.mesh_axes_of('batch')) == 4
    assert same(alone, loop.generate_all(*tiny, prompts, **options))


@pytest.mark.slow
def test_many_lengths_compile_few_functions():
  """Many lengths, settings and numbers of tokens compile a few sizes of each function."""
  model, params = tiny_model(layers=1)
  before = loop.read_tokens._cache_size(), loop.decode_chunk._cache_size()
  for length in range(1, 34):
    sampling = Sampling(0.1 * (length % 3), length % 5, 1 - 0.01 * (length % 7), 0.01 * (length % 2))
    options = dict(max_tokens=1 + length % 4, eos=0, sampling=sampling)
    loop.generate_all(model, params, [np.ones(length, np.int32)], **options)
  sizes = 3  # of caches: 16, 32 and 48 slots
  assert loop.decode_chunk._cache_size() - before[1] == sizes
  assert loop.read_tokens._cache_size() - before[0] == sizes - 1  # the shortest prompts need no prefill
  for penalty in (0.9, 1.1, 2):
    loop.generate_all(
      model, params, [[1]], max_tokens=4, eos=0, sampling=Sampling(repetition_penalty=penalty)
    )
  assert loop.decode_chunk._cache_size() - before[1] == sizes + 1


def test_round_up_has_few_sizes():
  sizes = [loop.round_up(n) for n in range(1, 4097)]
  assert all(n <= size <= max(n + 1, 1.25 * n) for n, size in enumerate(sizes, 1))
  assert len(set(sizes)) <= 4 * 12 and sorted(sizes) == sizes
  assert loop.round_up(1, 16) == 16 and loop.round_up(17, 16) == 32 and loop.round_up(257, 16) == 320


def test_prompts_are_read_in_pieces_of_the_widths():
  """But a prefix, all of whose tokens see each other, at once."""
  prompts = [np.ones(21, np.int32), np.ones(3, np.int32)]
  plan = lambda *fields: loop.plan_prefill(types.SimpleNamespace(required_fields=fields), prompts, (16, 4))
  assert plan() == (2, [16, 4]) and plan('prefix') == (2, [32])


def test_the_compiled_loop_ends_with_the_last_row(tiny, prompts, monkeypatch):
  counts, decode = [], loop.decode_chunk
  free = loop.generate_all(*tiny, prompts[:1], max_tokens=16, eos=None)[0]

  def counted(*args):
    state, tokens, count = decode(*args)
    counts.append(int(count))
    return state, tokens, count

  monkeypatch.setattr(loop, 'decode_chunk', counted)
  [new] = loop.generate_all(*tiny, prompts[:1], max_tokens=16, eos=int(free[3]))
  assert counts == [len(new) + 1] and counts[0] <= 4


@pytest.mark.parametrize('n, pieces', [(0, []), (1, [4]), (16, [16]), (39, [16, 16, 4, 4])])
def test_split_into_widths(n, pieces):
  assert loop.split_into_widths(n, (16, 4)) == pieces


def test_max_tokens_is_limited_by_learned_positions(prompts):
  """64 rows: a prompt of 30 tokens leaves 35 new tokens."""
  model, params = tiny_model(position='learned')
  with pytest.raises(ValueError, match='=36 after a prompt of 30 .* 65 .*Learned has 64.*max_tokens=35'):
    loop.generate(model, params, prompts, max_tokens=36, eos=None)
  with pytest.raises(ValueError, match='shorten the prompt'):
    loop.generate(model, params, [np.ones(65, np.int32)], max_tokens=1, eos=None)


def test_every_prompt_needs_a_source():
  model, params = pairs.make_model()
  options = dict(prompts=[[1], [2]], max_tokens=4, eos=0)
  for sources, count in ((None, 0), ([[3]], 1)):
    with pytest.raises(ValueError, match=f'one source for each of 2 prompts; there are {count}$'):
      loop.generate(model, params, sources=sources, **options)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(max_tokens=0), 'max_tokens=0'),
    (dict(prompts=[]), 'prompts is empty'),
    (dict(prompts=[[1], []]), r'prompts\[1\] is empty'),
    (dict(prompts=[[VOCAB]]), 'outside the vocabulary of 37'),
    (dict(sampling=Sampling(temperature=-1)), 'temperature=-1'),
    (dict(sampling=Sampling(temperature=float('nan'))), 'temperature=nan'),
    (dict(sampling=Sampling(top_k=-1)), 'top_k=-1'),
    (dict(sampling=Sampling(top_p=0)), 'top_p=0'),
    (dict(sampling=Sampling(top_p=1.1)), 'top_p=1.1'),
    (dict(sampling=Sampling(min_p=1.1)), 'min_p=1.1'),
    (dict(sampling=Sampling(repetition_penalty=0)), 'repetition_penalty=0'),
  ],
)
def test_invalid_arguments_are_rejected(tiny, arguments, message):
  with pytest.raises(ValueError, match=message):
    loop.generate(*tiny, **(dict(prompts=[[1]], max_tokens=4, eos=0) | arguments))


def test_nan_logits_are_reported(tiny):
  model, params = tiny
  broken = jax.tree.map(lambda x: x * float('nan'), params)
  with pytest.raises(ValueError, match='logits of the model are NaN'):
    loop.generate_all(model, broken, [[1]], max_tokens=16, eos=0)


def test_decoding_and_the_unrolling_of_layers_are_compiled_with_their_option():
  """With an option that no compiler knows, all fail."""
  code = """
import jax
from tfm.parallel import compiler_options
compiler_options.WITHOUT_FUSION_EMITTERS = dict(xla_nonsense=True)
from tests.decoding.tiny import tiny_model
from tfm.decoding import beam, loop, unroll_layers
model = tiny_model(layers=1)
decode = lambda: loop.generate_all(*model, [[1]], max_tokens=2, eos=None)
search = lambda: beam.search(*model, [[1]], max_tokens=2, eos=0, settings=beam.BeamSearch(beams=2))
unroll = lambda: unroll_layers.unstack_layers(dict(w=jax.numpy.ones((2, 1))), 2)
for run in decode, search, unroll:
  try:
    run()
  except jax.errors.JaxRuntimeError as error:
    print(error)
"""
  run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
  assert run.stdout.count('xla_nonsense') == 3, run.stdout + run.stderr
