"""The encoder against the published implementation: BERT of `transformers`, with its own random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import test_encoder
from tests.models.pairs import context


torch = pytest.importorskip('torch', reason='PyTorch is not installed; make oracle installs it')
transformers = pytest.importorskip(
  'transformers', reason='transformers is not installed; make oracle installs it'
)
pytestmark = pytest.mark.oracle

D, H, F, LAYERS, V, T = 16, 4, 32, 2, test_encoder.VOCAB, test_encoder.LENGTH


@pytest.fixture(scope='module')
def published():
  config = transformers.BertConfig(
    vocab_size=V,
    hidden_size=D,
    num_hidden_layers=LAYERS,
    num_attention_heads=H,
    intermediate_size=F,
    hidden_act='gelu',
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=T,
    type_vocab_size=2,
    initializer_range=0.5,
    layer_norm_eps=1e-12,
    attn_implementation='eager',
  )
  torch.manual_seed(0)
  reference = transformers.BertForPreTraining(config).eval()
  with torch.no_grad():
    for name, p in reference.named_parameters():
      if p.ndim == 1:
        p.copy_(('LayerNorm' in name and 'weight' in name) + 0.3 * torch.randn_like(p))
  return reference


def weights(published):
  """The tree of an unscanned model."""
  state = {name: np.asarray(p.detach(), np.float32) for name, p in published.state_dict().items()}

  def dense(prefix, kernel=None, bias=None):
    fields = dict(kernel=state[f'{prefix}.weight'].T, bias=state[f'{prefix}.bias'])
    return dict(
      kernel=fields['kernel'].reshape(kernel or fields['kernel'].shape),
      bias=fields['bias'].reshape(bias or fields['bias'].shape),
    )

  def norm(prefix):
    return dict(scale=state[f'{prefix}.weight'], bias=state[f'{prefix}.bias'])

  def rows(name):
    return np.pad(state[name], [(0, 24 - V)] + [(0, 0)] * (state[name].ndim - 1))

  def block(prefix):
    heads = dict(kernel=(D, H, D // H), bias=(H, D // H))
    return dict(
      mixer=dict(
        **{name[0]: dense(f'{prefix}.attention.self.{name}', **heads) for name in ('query', 'key', 'value')},
        out=dense(f'{prefix}.attention.output.dense', kernel=(H, D // H, D)),
      ),
      mixer_norm=norm(f'{prefix}.attention.output.LayerNorm'),
      feed_forward=dict(up=dense(f'{prefix}.intermediate.dense'), down=dense(f'{prefix}.output.dense')),
      feed_forward_norm=norm(f'{prefix}.output.LayerNorm'),
    )

  embeddings, head = 'bert.embeddings', 'cls.predictions'
  return jax.tree.map(
    jnp.asarray,
    dict(
      embedding=dict(table=rows(f'{embeddings}.word_embeddings.weight')),
      position_0=dict(table=state[f'{embeddings}.position_embeddings.weight']),
      type_embedding=dict(table=state[f'{embeddings}.token_type_embeddings.weight']),
      embedding_norm=norm(f'{embeddings}.LayerNorm'),
      stack={f'layers_{i}': {'block_0': block(f'bert.encoder.layer.{i}')} for i in range(LAYERS)},
      transform=dict(dense=dense(f'{head}.transform.dense'), norm=norm(f'{head}.transform.LayerNorm')),
      bias=dict(bias=rows(f'{head}.bias')),
      next_sentence=dict(
        transform=dict(dense=dense('bert.pooler.dense')), classes=dense('cls.seq_relationship')
      ),
    ),
  )


def test_logits(published):
  draw = np.random.default_rng(0)
  tokens, types = draw.integers(0, V, (3, T)), draw.integers(0, 2, (3, T))
  segments = np.array([[1] * T, [1] * 5 + [0] * 3, [1] * 2 + [0] * 6])
  model, drawn = test_encoder.make_encoder(norm='layernorm(1e-12)')
  params = weights(published)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, drawn)
  found = test_encoder.answers(model, params, tokens, context(segments), types)
  with torch.no_grad():
    expected = published(torch.tensor(tokens), torch.tensor(segments), torch.tensor(types))
  there = segments > 0
  np.testing.assert_allclose(
    np.asarray(found['vocabulary'])[there], expected.prediction_logits.numpy()[there], rtol=2e-5, atol=2e-5
  )
  # Of the published two classes the first is "follows"; of ours the second, 1, is.
  np.testing.assert_allclose(
    found['next_sentence'], expected.seq_relationship_logits.numpy(), rtol=2e-5, atol=2e-5
  )
