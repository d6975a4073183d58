"""Beam search equals exhaustive search, a search in plain Python, and greedy decoding with one beam."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.tiny import forward, tiny_model
from tests.models import pairs
from tfm.decoding import beam, loop
from tfm.decoding.beam import BeamSearch, Gnmt, Power
from tfm.decoding.sampling import Sampling
from tfm.decoding.unroll_layers import unroll_layers
from tfm.models.stack import Stack


EOS = 2
PENALTIES = (
  Power(1.0),
  Gnmt(0.6),
  *(pytest.param(penalty, marks=pytest.mark.slow) for penalty in (Power(-0.5), Power(0.0))),
)


def small_decoder(vocab=4, **model):
  """A decoder with few tokens; EOS is as likely as the others."""
  return tiny_model(vocab, **model)


def log_p(model, params, prompt, tokens, source=None):
  """log p of each of `tokens` after the prompt and those before it, by one whole forward pass."""
  read = np.concatenate([prompt, tokens]).astype(np.int32)
  padded = np.pad(read, (0, 12 - len(read)))[None]
  if source is None:
    logits = forward(model, params, padded)[0]
  else:
    logits = pairs.logits(
      model,
      params,
      padded,
      pairs.context(np.ones((1, 12))),
      source[None],
      pairs.context(np.ones((1, len(source)))),
    )[0]
  rows = jax.nn.log_softmax(logits[len(prompt) - 1 : len(read) - 1])
  return np.asarray(rows)[np.arange(len(tokens)), tokens]


def assert_close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('penalty', PENALTIES, ids=str)
def test_a_wide_beam_equals_exhaustive_search(penalty):
  """4 tokens and at most 3 steps: hypotheses that end, and those cut off at the limit."""
  model, params = small_decoder()
  prompt, limit = np.array([1, 3], np.int32), 3
  others = [t for t in range(4) if t != EOS]
  every = [(*tokens, EOS) for n in range(limit) for tokens in itertools.product(others, repeat=n)]
  every += itertools.product(others, repeat=limit)
  scores = {
    tokens: log_p(model, params, prompt, tokens).sum() / float(penalty(len(tokens))) for tokens in every
  }
  best = sorted(every, key=scores.get, reverse=True)
  # Enough beams for all hypotheses.
  [results] = beam.search(
    model, params, [prompt], max_tokens=limit, eos=EOS, settings=BeamSearch(beams=64, penalty=penalty)
  )
  assert len(results) == len(every)
  assert [tuple(h.tokens.tolist()) for h in results] == [
    tuple(t for t in tokens if t != EOS) for tokens in best
  ]
  assert_close([h.score for h in results], [scores[tokens] for tokens in best])


@pytest.mark.parametrize(
  'penalty, length, value',
  [
    (Gnmt(1.0), 1, 1.0),
    (Gnmt(1.0), 7, 2.0),
    (Gnmt(0.5), 19, 2.0),
    (Gnmt(0.6), 7, 1.5157166),
    (Gnmt(0.0), 9, 1.0),
  ]
  + [(Power(2.0), 3, 9.0), (Power(0.0), 3, 1.0), (Power(-1.0), 4, 0.25), (Power(-1), 4, 0.25)],
)
def test_length_penalties(penalty, length, value):
  """Wu et al. 2016, eq. 14, ((5 + length) / 6)^alpha, and length^alpha, worked out by hand."""
  assert float(penalty(length)) == pytest.approx(value, rel=1e-6)


def reference(model, params, prompt, limit, beams, penalty, source=None, eos=EOS, stopping='proven'):
  """The search in plain Python, up to the limit unless it stops early: [(tokens, score)], best first."""
  live, ended = [((), 0.0)], []
  for step in range(limit):
    extended = []
    for tokens, total in live:
      last = [log_p(model, params, prompt, (*tokens, t), source)[-1] for t in range(model.vocab)]
      extended += [((*tokens, t), total + last[t]) for t in range(model.vocab)]
    extended.sort(key=lambda pair: pair[1], reverse=True)
    ends = [pair for pair in extended[:beams] if pair[0][-1] == eos or step + 1 == limit]
    ended += [
      (tuple(t for t in tokens if t != eos), total / float(penalty(step + 1))) for tokens, total in ends
    ]
    ended = sorted(ended, key=lambda pair: pair[1], reverse=True)[:beams]
    worst = ended[-1][1] if len(ended) == beams else -np.inf
    live = [pair for pair in extended[: 2 * beams] if pair[0][-1] != eos][:beams]
    if worst > -np.inf and (
      stopping == 'first' or stopping == 'likely' and live[0][1] / float(penalty(step + 1)) <= worst
    ):
      break
  return ended


@pytest.mark.sampled(1)
@pytest.mark.parametrize('penalty', PENALTIES, ids=str)
@pytest.mark.parametrize(
  'beams, stopping',
  [
    (3, 'proven'),
    (2, 'first'),
    pytest.param(2, 'likely', marks=pytest.mark.slow),
    pytest.param(2, 'proven', marks=pytest.mark.slow),
    pytest.param(1, 'first', marks=pytest.mark.slow),
  ],
)
def test_search_equals_the_reference_in_plain_python(beams, stopping, penalty):
  """All hypotheses, with early stopping, reordered caches and a limit per row; the likeliest token ends a
  text, and so early that the stopping rules differ.
  """
  (model, params), eos = small_decoder(vocab=5), 4
  prompts, limits = [np.array(p, np.int32) for p in ([1, 4], [3, 4, 0, 1], [0, 3])], [6, 6, 1]
  results = beam.search(
    model,
    params,
    prompts,
    max_tokens=limits,
    eos=eos,
    settings=BeamSearch(beams=beams, penalty=penalty, stopping=stopping),
    room=2,
  )
  for prompt, limit, hypotheses in zip(prompts, limits, results):
    expected = reference(model, params, prompt, limit, beams, penalty, eos=eos, stopping=stopping)
    assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
    assert_close([h.score for h in hypotheses], [score for _, score in expected])


@pytest.mark.slow
def test_search_of_an_encoder_decoder_equals_the_reference():
  model, params = unroll_layers(*pairs.make_model())
  rng = np.random.default_rng(3)
  sources = [rng.integers(0, pairs.VOCAB, n).astype(np.int32) for n in (7, 3)]
  prompts = [np.array([EOS], np.int32), np.array([EOS, 4, 5], np.int32)]  # the second forces two tokens
  results = beam.search(
    model, params, prompts, sources=sources, max_tokens=4, eos=EOS, settings=BeamSearch(beams=3)
  )
  for prompt, source, hypotheses in zip(prompts, sources, results):
    expected = reference(model, params, prompt, 4, 3, Gnmt(), source)
    assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
    assert_close([h.score for h in hypotheses], [score for _, score in expected])


@pytest.mark.slow
@pytest.mark.parametrize(
  'mixer', ['softmax', *(pytest.param(mixer, marks=pytest.mark.slow) for mixer in ('mamba', 'recurrent'))]
)
@pytest.mark.parametrize('scan', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_scores_equal_those_of_a_forward_pass(mixer, scan):
  """A forward pass without a cache, for mixers with different caches, scanned or not."""
  position = 'rope' if mixer == 'softmax' else 'none'
  model, params = small_decoder(vocab=9, mixer=mixer, position=position, scan=scan)
  prompt = np.array([5, 1, 7], np.int32)
  results = beam.search(
    model, params, [prompt], max_tokens=7, eos=EOS, settings=BeamSearch(beams=3, penalty=Power(1.0)), room=3
  )[0]
  assert len({tuple(h.tokens.tolist()) for h in results}) == 3
  assert [h.score for h in results] == sorted((h.score for h in results), reverse=True)
  for tokens, score in results:
    new = tokens if len(tokens) == 7 else np.append(tokens, EOS)
    assert_close(score, log_p(model, params, prompt, new).sum() / len(new))


@pytest.mark.parametrize(
  'model',
  [
    dict(mixer='softmax', position='rope', kv_heads=2, mask='causal & window(5)'),
    pytest.param(dict(mixer='gated', position='t5', scan=False), marks=pytest.mark.slow),
    pytest.param(dict(mixer='latent(rank=8, rope_width=4)', position='rope'), marks=pytest.mark.slow),
  ],
  ids=str,
)
def test_a_tree_in_one_cache_finds_what_a_cache_for_each_hypothesis_does(model, monkeypatch):
  """The caches grow twice; one row ends earlier."""
  model, params = small_decoder(vocab=11, **model)
  prompts = [np.array(p, np.int32) for p in ([5, 1, 7], [3], [8, 8, 4, 1, 9, 0])]
  settings = dict(max_tokens=[12, 3, 12], eos=EOS, settings=BeamSearch(beams=4, penalty=Power(1.0)), room=3)
  assert model.stack().supports_trees
  tree = beam.search(model, params, prompts, **settings)
  monkeypatch.setattr(Stack, 'supports_trees', False)
  copies = beam.search(model, params, prompts, **settings)
  for a, b in zip(tree, copies, strict=True):
    assert [h.tokens.tolist() for h in a] == [h.tokens.tolist() for h in b]
    assert_close([h.score for h in a], [h.score for h in b])


def test_one_beam_is_greedy(tiny, prompts):
  """The first end is final although other rows continue: token 14 ends some rows, and longer ones would score
  better. The caches grow twice.
  """
  model, params = tiny
  greedy = loop.generate_all(model, params, prompts, max_tokens=20, eos=14, sampling=Sampling(0.0))
  assert 0 < sum(len(tokens) == 20 for tokens in greedy) < len(prompts)
  results = beam.search(
    model, params, prompts, max_tokens=20, eos=14, settings=BeamSearch(beams=1, penalty=Power(1.0)), room=7
  )
  for tokens, [hypothesis] in zip(greedy, results):
    np.testing.assert_array_equal(hypothesis.tokens, tokens)


@pytest.mark.slow
def test_one_beam_of_an_encoder_decoder_is_greedy():
  model, params = pairs.make_model()
  sources = [np.arange(n, dtype=np.int32) + 3 for n in (5, 9, 2)]
  prompts = [np.array([EOS], np.int32)] * 3
  greedy = loop.generate_all(model, params, prompts, sources=sources, max_tokens=6, eos=EOS)
  for tokens, [hypothesis] in zip(
    greedy,
    beam.search(model, params, prompts, sources=sources, max_tokens=6, eos=EOS, settings=BeamSearch(beams=1)),
  ):
    np.testing.assert_array_equal(hypothesis.tokens, tokens)
  # And greedy takes the argmax of a full forward pass.
  for source, tokens in zip(sources, greedy):
    for n in range(len(tokens)):
      padded = np.pad(np.append([EOS], tokens[:n]), (0, 8 - n - 1))[None]
      row = pairs.logits(
        model,
        params,
        padded,
        pairs.context(np.ones((1, 8))),
        source[None],
        pairs.context(np.ones((1, len(source)))),
      )[0, n]
      assert np.argmax(row) == tokens[n]


@pytest.mark.slow
@pytest.mark.parametrize(
  'eos, penalty, stopping, beams, limits',
  [
    (18, Power(3.0), 'likely', 2, [14] * 6),  # a penalty by which a stopped row could improve if it continued
    pytest.param(EOS, Gnmt(), 'proven', 3, [9, 3, 7, 5, 2, 8], marks=pytest.mark.slow),
  ],
)
def test_rows_do_not_depend_on_other_rows(tiny, prompts, eos, penalty, stopping, beams, limits):
  model, params = tiny

  def search(some, limits):
    return beam.search(
      model,
      params,
      some,
      max_tokens=limits,
      eos=eos,
      settings=BeamSearch(beams=beams, penalty=penalty, stopping=stopping),
    )

  for prompt, limit, together in zip(prompts, limits, search(prompts, limits)):
    [alone] = search([prompt], limit)
    assert [h.tokens.tolist() for h in alone] == [h.tokens.tolist() for h in together]
    assert_close([h.score for h in alone], [h.score for h in together])
    assert all(len(h.tokens) <= limit for h in together)


def test_invalid_arguments_are_rejected(tiny):
  model, params = tiny
  prompt = [np.array([1], np.int32)]
  with pytest.raises(ValueError, match=r'beams=0 must be at least 1'):
    beam.search(model, params, prompt, max_tokens=3, eos=EOS, settings=BeamSearch(beams=0))
  with pytest.raises(ValueError, match="stopping='never' is unknown; use one of proven, likely, first"):
    BeamSearch(stopping='never')
  with pytest.raises(ValueError, match=r'sources require an encoder-decoder'):
    beam.search(model, params, prompt, sources=prompt, max_tokens=3, eos=EOS)
  with pytest.raises(ValueError, match=r'requires one source for each of 1 prompts; there are 0'):
    beam.search(*pairs.make_model(), prompt, max_tokens=3, eos=EOS)
  with pytest.raises(ValueError, match=r'prompts is empty; pass at least one'):
    beam.search(model, params, [], max_tokens=3, eos=EOS)
  with pytest.raises(ValueError, match=r'max_tokens=0 must be at least 1'):
    beam.search(model, params, prompt * 2, max_tokens=[3, 0], eos=EOS)
  broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
  for beams in (1, 2):
    with pytest.raises(ValueError, match='logits of the model are NaN'):
      beam.search(model, broken, prompt, max_tokens=3, eos=EOS, settings=BeamSearch(beams=beams))
