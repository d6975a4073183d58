"""The model of nanogpt_torch is the GPT-2 of transformers."""

import re

import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

from tfm.benchmark import nanogpt_torch  # noqa: E402


def test_the_model_of_nanogpt_is_a_gpt2_that_trains():
  """With the parameters of `transformers`' GPT-2, whose products are transposed, it has its logits."""
  torch.manual_seed(0)
  config = transformers.GPT2Config(
    vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, activation_function='gelu'
  )
  published = transformers.GPT2LMHeadModel(config).eval()
  model = nanogpt_torch.GPT(layers=2, width=16, heads=2, length=16, vocab=32)
  names = dict(tokens='wte', positions='wpe', layers='h', norm='ln_f', qkv='attn.c_attn', out='attn.c_proj')
  names |= {'up': 'mlp.c_fc', 'down': 'mlp.c_proj', 'norms.0': 'ln_1', 'norms.1': 'ln_2'}
  theirs = dict(published.transformer.named_parameters())
  with torch.no_grad():
    for name, x in model.named_parameters():
      for ours, other in names.items():
        name = re.sub(rf'(^|\.){re.escape(ours)}\.', rf'\1{other}.', name)
      found = theirs.pop(name)
      x.copy_(found.T if '.c_' in name and x.ndim == 2 else found)
  assert not theirs
  tokens = torch.randint(32, (2, 17))
  torch.testing.assert_close(model(tokens[:, :-1]), published(tokens[:, :-1]).logits)
  step = nanogpt_torch.make_step(model, tokens, compiled=0)
  losses = [step() for _ in range(20)]
  assert losses[-1] < losses[0]
