"""The encoder-decoder against the published implementation: Marian of `transformers`, with its own random
weights.

Marian is the first Transformer: post-norm, sinusoidal positions, √D times the embedding, one table for all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import pairs
from tfm.benchmark import translation_torch
from tfm.decoding import beam, loop
from tfm.decoding.beam import BeamSearch, Power


torch = pytest.importorskip('torch', reason='PyTorch is not installed; make oracle installs it')
transformers = pytest.importorskip(
  'transformers', reason='transformers is not installed; make oracle installs it'
)
pytestmark = pytest.mark.oracle

D, H, F, LAYERS, V = 16, 4, 32, 2, pairs.VOCAB


@pytest.fixture(scope='module')
def published():
  config = transformers.MarianConfig(
    vocab_size=V,
    d_model=D,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    encoder_attention_heads=H,
    decoder_attention_heads=H,
    encoder_ffn_dim=F,
    decoder_ffn_dim=F,
    max_position_embeddings=64,
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    activation_function='relu',
    scale_embedding=True,
    pad_token_id=V - 1,
    eos_token_id=2,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
    init_std=0.5,
    attn_implementation='eager',
  )
  torch.manual_seed(0)
  reference = transformers.MarianMTModel(config).eval()
  with torch.no_grad():
    for name, p in reference.named_parameters():
      if p.ndim == 1:
        p.copy_(('norm' in name and 'weight' in name) + 0.3 * torch.randn_like(p))
  return reference


def weights(published):
  """The tree of an unscanned model. Marian's positions are sines and then cosines, the paper's take turns: so
  do channels.
  """
  state = {name: np.asarray(p.detach(), np.float32) for name, p in published.state_dict().items()}
  order = np.arange(D).reshape(2, D // 2).T.reshape(-1)

  def attention(prefix):
    def side(name):
      return state[f'{prefix}.{name}.weight'].T, state[f'{prefix}.{name}.bias']

    fields = {}
    for ours, theirs in (('q', 'q_proj'), ('k', 'k_proj'), ('v', 'v_proj')):
      kernel, bias = side(theirs)
      fields[ours] = dict(kernel=kernel[order].reshape(D, H, D // H), bias=bias.reshape(H, D // H))
    kernel, bias = side('out_proj')
    fields['out'] = dict(kernel=kernel[:, order].reshape(H, D // H, D), bias=bias[order])
    return fields

  def norm(prefix):
    return dict(scale=state[f'{prefix}.weight'][order], bias=state[f'{prefix}.bias'][order])

  def block(prefix, crossed):
    fields = dict(
      mixer=attention(f'{prefix}.self_attn'),
      mixer_norm=norm(f'{prefix}.self_attn_layer_norm'),
      feed_forward=dict(
        up=dict(kernel=state[f'{prefix}.fc1.weight'].T[order], bias=state[f'{prefix}.fc1.bias']),
        down=dict(kernel=state[f'{prefix}.fc2.weight'].T[:, order], bias=state[f'{prefix}.fc2.bias'][order]),
      ),
      feed_forward_norm=norm(f'{prefix}.final_layer_norm'),
    )
    if crossed:
      fields |= dict(
        cross=attention(f'{prefix}.encoder_attn'), cross_norm=norm(f'{prefix}.encoder_attn_layer_norm')
      )
    return fields

  def stack(side, crossed):
    return {f'layers_{i}': {'block_0': block(f'model.{side}.layers.{i}', crossed)} for i in range(LAYERS)}

  table = np.zeros((24, D), np.float32)
  table[:V] = state['model.shared.weight'][:, order]
  return jax.tree.map(
    jnp.asarray,
    dict(
      embedding=dict(table=table), stack=stack('decoder', True), encoder=dict(stack=stack('encoder', False))
    ),
  )


@pytest.fixture(scope='module')
def model():
  return pairs.make_model(
    scan=False, norm_placement='post', position='sinusoidal', feed_forward='relu', scale_embeddings=True
  )[0]


def test_logits(published, model):
  draw = np.random.default_rng(0)
  source, target = draw.integers(3, V - 1, (2, 7)), draw.integers(3, V - 1, (2, 5))
  there = np.array([[1] * 7, [1] * 4 + [0] * 3])
  source[1, 4:] = V - 1
  with torch.no_grad():
    expected = published(
      input_ids=torch.tensor(source),
      attention_mask=torch.tensor(there),
      decoder_input_ids=torch.tensor(target),
    ).logits
  found = pairs.logits(
    model, weights(published), target, pairs.context(np.ones((2, 5))), source, pairs.context(there)
  )
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected.numpy()).max())


def test_scores_of_its_own_beams(published, model):
  """What its beam search finds has the score that ours gives it, and ours finds nothing worse."""
  source = np.random.default_rng(1).integers(3, V - 1, (1, 6))
  with torch.no_grad():
    out = published.generate(
      input_ids=torch.tensor(source),
      num_beams=4,
      num_return_sequences=4,
      max_new_tokens=8,
      length_penalty=1.0,
      early_stopping='never',
      output_scores=True,
      return_dict_in_generate=True,
    )
  theirs = {
    tuple(t for t in row[1:].tolist() if t not in (2, V - 1)): float(s)
    for row, s in zip(out.sequences, out.sequences_scores)
  }
  [found] = beam.search(
    model,
    weights(published),
    [np.array([2])],
    sources=list(source),
    max_tokens=8,
    eos=2,
    settings=BeamSearch(beams=4, penalty=Power(1.0)),
  )
  ours = {tuple(tokens.tolist()): score for tokens, score in found}
  assert max(ours.values()) >= max(theirs.values()) - 1e-4
  shared = set(ours) & set(theirs)
  assert shared
  for tokens in shared:
    np.testing.assert_allclose(ours[tokens], theirs[tokens], rtol=1e-4)


@pytest.mark.parametrize('placement, scan', [('post', True), ('pre', True), ('post', False)])
def test_what_the_benchmark_makes_is_the_same_model(placement, scan):
  """Our parameters as Marian's, or Pegasus's, with heads and layers of the encoder's own."""
  shape = dict(
    norm_placement=placement,
    position='sinusoidal',
    feed_forward='relu',
    scale_embeddings=True,
    scan=scan,
    encoder=dict(layers=3, heads=2),
  )
  model, params = pairs.make_model(**shape)
  reference = translation_torch.make_marian(pairs.config(**shape), params, V, eos=2)
  draw = np.random.default_rng(4)
  source, target = draw.integers(0, V, (2, 7)), draw.integers(0, V, (2, 5))
  there = np.array([[1] * 7, [1] * 4 + [0] * 3])
  with torch.no_grad():
    expected = reference(
      input_ids=torch.tensor(source),
      attention_mask=torch.tensor(there),
      decoder_input_ids=torch.tensor(target),
    ).logits
  found = pairs.logits(model, params, target, pairs.context(np.ones((2, 5))), source, pairs.context(there))
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected.numpy()).max())


@pytest.mark.parametrize('alpha', [1.0, 2.0])
@pytest.mark.parametrize('early, stopping', [(True, 'first'), (False, 'likely'), ('never', 'proven')])
def test_stopping(published, model, early, stopping, alpha):
  """Of rows that stop one after the other: the same hypotheses, with the same scores."""
  sources, end = (
    np.random.default_rng(2).integers(3, V - 1, (8, 6)),
    13,
  )  # a token that this model writes here and there
  with torch.no_grad():
    out = published.generate(
      input_ids=torch.tensor(sources),
      num_beams=3,
      num_return_sequences=3,
      max_new_tokens=12,
      length_penalty=alpha,
      early_stopping=early,
      eos_token_id=end,
      output_scores=True,
      return_dict_in_generate=True,
    )
  found = beam.search(
    model,
    weights(published),
    [np.array([2])] * 8,
    sources=list(sources),
    max_tokens=12,
    eos=end,
    settings=BeamSearch(beams=3, penalty=Power(alpha), stopping=stopping),
  )
  theirs = [row[: loop.length_before(row, end)].tolist() for row in out.sequences[:, 1:].numpy()]
  assert [hypothesis.tokens.tolist() for row in found for hypothesis in row] == theirs
  np.testing.assert_allclose(
    [hypothesis.score for row in found for hypothesis in row], out.sequences_scores, rtol=1e-4
  )
  assert stopping != 'first' or len(set(map(len, theirs))) > 3
