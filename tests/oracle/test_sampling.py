"""Penalty, temperature and filters equal those of `transformers`, in the order of its `generate`."""

import jax.numpy as jnp
import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

from tests.decoding.tiny import VOCAB  # noqa: E402
from tfm.decoding.sampling import Sampling, find_prompt_tokens, penalize_repetition, transform_logits  # noqa: E402


@pytest.fixture(scope='module')
def model():
  torch.manual_seed(0)
  return transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
      vocab_size=VOCAB,
      n_positions=32,
      n_embd=16,
      n_layer=1,
      n_head=2,
      initializer_range=0.5,
      bos_token_id=0,
      eos_token_id=0,
      pad_token_id=0,
    )
  ).eval()


@pytest.mark.parametrize(
  'sampling',
  [
    Sampling(0.7),
    Sampling(1.0, min_p=0.1),
    Sampling(1.0, repetition_penalty=1.8),
    Sampling(1.0, repetition_penalty=0.5),
    Sampling(0.6, 9, 0.8, 0.05, 1.3),
    Sampling(3.0, 0, 0.9, 0.3, 1.1),
  ],
  ids=str,
)
def test_scores_equal_those_of_transformers_generate(model, sampling):
  """Step by step from the model's logits; prompts have one length, since others would be padded."""
  prompt = torch.tensor(np.random.default_rng(0).integers(1, VOCAB, (5, 4)))
  torch.manual_seed(1)
  out = model.generate(
    prompt,
    attention_mask=torch.ones_like(prompt),
    do_sample=True,
    max_new_tokens=12,
    min_new_tokens=12,
    temperature=sampling.temperature,
    top_k=sampling.top_k,
    top_p=sampling.top_p,
    min_p=sampling.min_p,
    repetition_penalty=sampling.repetition_penalty,
    eos_token_id=None,
    output_scores=True,
    output_logits=True,
    return_dict_in_generate=True,
  )
  assert len(out.scores) == 12
  for n, (logits, expected) in enumerate(zip(out.logits, out.scores), 4):
    seen = find_prompt_tokens(list(out.sequences[:, :n].numpy()), 5, VOCAB)
    scores = np.asarray(
      transform_logits(
        penalize_repetition(jnp.asarray(logits.numpy()), seen, sampling.repetition_penalty), sampling
      )
    )
    expected = expected.numpy()
    np.testing.assert_array_equal(np.isfinite(scores), np.isfinite(expected))
    np.testing.assert_allclose(scores, expected - expected.max(-1, keepdims=True), rtol=1e-4, atol=1e-4)
