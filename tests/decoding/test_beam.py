"""Beam search: against every hypothesis there is, against a search in plain Python, and against greedy decoding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.conftest import forward, tiny_model
from tests.models import pairs
from tfm.decoding import beam, loop
from tfm.decoding.beam import Gnmt, Power
from tfm.decoding.sampling import Sampling
from tfm.decoding.unrolled import unrolled


EOS = 2
PENALTIES = (
  Gnmt(0.6),
  Power(-0.5),
  *(pytest.param(made, marks=pytest.mark.slow) for made in (Power(1.0), Power(0.0))),
)


def few(vocab=4, **model):
  """A decoder of few tokens, of which EOS is as likely as any."""
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


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize('penalty', PENALTIES, ids=str)
def test_a_wide_beam_finds_the_best_of_all(penalty):
  """Of 4 tokens and at most 3 steps: hypotheses that end, and those that are cut."""
  model, params = few()
  prompt, limit = np.array([1, 3], np.int32), 3
  others = [t for t in range(4) if t != EOS]
  every = [(*tokens, EOS) for n in range(limit) for tokens in itertools.product(others, repeat=n)]
  every += itertools.product(others, repeat=limit)
  scores = {
    tokens: log_p(model, params, prompt, tokens).sum() / float(penalty(len(tokens))) for tokens in every
  }
  best = sorted(every, key=scores.get, reverse=True)
  # So many beams that none is ever left out.
  [found] = beam.search(model, params, [prompt], max_tokens=limit, eos=EOS, beams=64, penalty=penalty)
  assert len(found) == len(every)
  assert [tuple(h.tokens.tolist()) for h in found] == [
    tuple(t for t in tokens if t != EOS) for tokens in best
  ]
  close([h.score for h in found], [scores[tokens] for tokens in best])


def reference(model, params, prompt, limit, beams, penalty, source=None, eos=EOS, stopping='proven'):
  """The search in plain Python, to the limit unless it is to stop early: [(tokens, score)], the best first."""
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
def test_the_search_is_that_of_plain_python(beams, stopping, penalty):
  """All of its hypotheses: nothing is lost by stopping early, by caches that change places, or by a limit of one's own."""
  model, params = few(vocab=5)
  prompts, limits = [np.array(p, np.int32) for p in ([1], [3, 4, 0, 1], [0, 3])], [6, 4, 1]
  found = beam.search(
    model,
    params,
    prompts,
    max_tokens=limits,
    eos=EOS,
    beams=beams,
    penalty=penalty,
    stopping=stopping,
    room=2,
  )
  for prompt, limit, hypotheses in zip(prompts, limits, found):
    expected = reference(model, params, prompt, limit, beams, penalty, stopping=stopping)
    assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
    close([h.score for h in hypotheses], [score for _, score in expected])


def test_an_encoder_decoder():
  model, params = unrolled(*pairs.made())
  draw = np.random.default_rng(3)
  sources = [draw.integers(0, pairs.VOCAB, n).astype(np.int32) for n in (7, 3)]
  prompts = [np.array([EOS], np.int32), np.array([EOS, 4, 5], np.int32)]  # the second forces two tokens
  found = beam.search(model, params, prompts, sources=sources, max_tokens=4, eos=EOS, beams=3)
  for prompt, source, hypotheses in zip(prompts, sources, found):
    expected = reference(model, params, prompt, 4, 3, Gnmt(), source)
    assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
    close([h.score for h in hypotheses], [score for _, score in expected])


@pytest.mark.parametrize(
  'mixer', ['softmax', *(pytest.param(mixer, marks=pytest.mark.slow) for mixer in ('mamba', 'recurrent'))]
)
@pytest.mark.parametrize('scan', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_scores_are_the_models_own(mixer, scan):
  """Rescored by a forward pass without a cache, whatever the mixers remember and wherever it lies."""
  position = 'rope' if mixer == 'softmax' else 'none'
  model, params = few(vocab=9, mixer=mixer, position=position, scan=scan)
  prompt = np.array([5, 1, 7], np.int32)
  found = beam.search(model, params, [prompt], max_tokens=7, eos=EOS, beams=3, penalty=Power(1.0), room=3)[0]
  assert len({tuple(h.tokens.tolist()) for h in found}) == 3
  assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
  for tokens, score in found:
    written = tokens if len(tokens) == 7 else np.append(tokens, EOS)
    close(score, log_p(model, params, prompt, written).sum() / len(written))


def test_one_beam_is_greedy(tiny, prompts):
  """What ends first stays, however long the other rows go on: token 14 ends two, and longer would score better."""
  model, params = tiny
  greedy = loop.complete(model, params, prompts, max_tokens=9, eos=14, sampling=Sampling(0.0))
  found = beam.search(model, params, prompts, max_tokens=9, eos=14, beams=1, penalty=Power(1.0))
  for tokens, [hypothesis] in zip(greedy, found):
    np.testing.assert_array_equal(hypothesis.tokens, tokens)


@pytest.mark.slow
def test_one_beam_of_an_encoder_decoder_is_greedy():
  model, params = pairs.made()
  sources = [np.arange(n, dtype=np.int32) + 3 for n in (5, 9, 2)]
  prompts = [np.array([EOS], np.int32)] * 3
  greedy = loop.complete(model, params, prompts, sources=sources, max_tokens=6, eos=EOS)
  for tokens, [hypothesis] in zip(
    greedy, beam.search(model, params, prompts, sources=sources, max_tokens=6, eos=EOS, beams=1)
  ):
    np.testing.assert_array_equal(hypothesis.tokens, tokens)
  # And greedy is what takes the likeliest token of a whole forward pass.
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
    (
      18,
      Power(3.0),
      'likely',
      2,
      [14] * 6,
    ),  # by which a row that has stopped could go on to something better
    pytest.param(EOS, Gnmt(), 'proven', 3, [9, 3, 7, 5, 2, 8], marks=pytest.mark.slow),
  ],
)
def test_rows_do_not_depend_on_their_company(tiny, prompts, eos, penalty, stopping, beams, limits):
  model, params = tiny

  def search(some, limits):
    return beam.search(
      model, params, some, max_tokens=limits, eos=eos, beams=beams, penalty=penalty, stopping=stopping
    )

  for prompt, limit, together in zip(prompts, limits, search(prompts, limits)):
    [alone] = search([prompt], limit)
    assert [h.tokens.tolist() for h in alone] == [h.tokens.tolist() for h in together]
    close([h.score for h in alone], [h.score for h in together])
    assert all(len(h.tokens) <= limit for h in together)


def test_what_cannot_be_is_refused(tiny):
  model, params = tiny
  prompt = [np.array([1], np.int32)]
  with pytest.raises(ValueError, match=r'beams=0 must be at least 1'):
    beam.search(model, params, prompt, max_tokens=3, eos=EOS, beams=0)
  with pytest.raises(ValueError, match=r'sources are for an encoder-decoder'):
    beam.search(model, params, prompt, sources=prompt, max_tokens=3, eos=EOS)
  with pytest.raises(ValueError, match=r'needs a source for each of 1 prompts, and here are 0'):
    beam.search(*pairs.made(), prompt, max_tokens=3, eos=EOS)
  with pytest.raises(ValueError, match=r'max_tokens=0 must be at least 1'):
    beam.search(model, params, prompt * 2, max_tokens=[3, 0], eos=EOS)
  broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
  for beams in (1, 2):
    with pytest.raises(ValueError, match='not numbers'):
      beam.search(model, broken, prompt, max_tokens=3, eos=EOS, beams=beams)
