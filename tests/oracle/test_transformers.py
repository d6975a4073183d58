"""The same weights give the same logits as the published implementations, in transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402

from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402


VOCAB, WIDTH, HEADS, LAYERS, LENGTH = 61, 32, 4, 3, 24


def weights(model):
  """Random weights, norms and biases too, so that nothing hides behind a one or a zero."""
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.ndim == 1 else 0.0))
  return {name: value.numpy() for name, value in model.eval().state_dict().items()}


def logits(params, **model):
  """Our logits of the same tokens, from a tree of numpy arrays."""
  config = resolve_config(
    complete(
      dict(
        data=dict(length=LENGTH),
        model=dict(layers=LAYERS, width=WIDTH, heads=HEADS, scan=False, vocab_multiple=1, **model),
      )
    )
  )
  tokens = jnp.asarray(TOKENS)
  return (
    Experiment(config).build_model(VOCAB).apply({'params': params}, tokens, Context.contiguous(tokens))[0]
  )


TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH))


def assert_equal(ours, model):
  with torch.no_grad():
    theirs = model(torch.tensor(TOKENS)).logits.numpy()
  np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


def test_gpt2():
  """Learned positions, layer norms and biases, tanh GELU, tied output, pre-norm."""
  model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
      vocab_size=VOCAB,
      n_positions=LENGTH,
      n_embd=WIDTH,
      n_layer=LAYERS,
      n_head=HEADS,
      bos_token_id=0,
      eos_token_id=0,
    )
  )
  w = weights(model)

  def block(i):
    def get(name):
      return w[f'transformer.h.{i}.{name}']

    q, k, v = np.split(get('attn.c_attn.weight'), 3, -1)
    bq, bk, bv = np.split(get('attn.c_attn.bias'), 3, -1)
    heads = (HEADS, WIDTH // HEADS)
    mixer = {
      name: dict(kernel=kernel.reshape(WIDTH, *heads), bias=bias.reshape(heads))
      for name, kernel, bias in (('q', q, bq), ('k', k, bk), ('v', v, bv))
    }
    mixer['out'] = dict(kernel=get('attn.c_proj.weight').reshape(*heads, WIDTH), bias=get('attn.c_proj.bias'))
    return dict(
      mixer=mixer,
      mixer_norm=dict(scale=get('ln_1.weight'), bias=get('ln_1.bias')),
      feed_forward=dict(
        up=dict(kernel=get('mlp.c_fc.weight'), bias=get('mlp.c_fc.bias')),
        down=dict(kernel=get('mlp.c_proj.weight'), bias=get('mlp.c_proj.bias')),
      ),
      feed_forward_norm=dict(scale=get('ln_2.weight'), bias=get('ln_2.bias')),
    )

  params = dict(
    embedding=dict(table=w['transformer.wte.weight']),
    position_0=dict(table=w['transformer.wpe.weight']),
    norm=dict(scale=w['transformer.ln_f.weight'], bias=w['transformer.ln_f.bias']),
    stack={f'layers_{i}': dict(block_0=block(i)) for i in range(LAYERS)},
  )
  assert_equal(logits(params, position='learned', bias=True, feed_forward='gelu_tanh'), model)


@pytest.mark.parametrize('kv_heads, window', [(4, None), (2, None), (1, 5)])
def test_llama_and_mistral(kv_heads, window):
  """Rotary positions, RMS norms, SwiGLU, grouped heads, an output of its own; Mistral's window."""
  settings = dict(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=48,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=kv_heads,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_theta=500.0,
  )
  model = (
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    if window is None
    else transformers.MistralForCausalLM(transformers.MistralConfig(**settings, sliding_window=window))
  )
  theta = model.config.rope_parameters['rope_theta']
  w, width = weights(model), WIDTH // HEADS

  def block(i):
    def get(name):
      return w[f'model.layers.{i}.{name}.weight'].T

    mixer = {name: dict(kernel=get(f'self_attn.{name}_proj').reshape(WIDTH, -1, width)) for name in 'qkv'}
    mixer['out'] = dict(kernel=get('self_attn.o_proj').reshape(HEADS, width, WIDTH))
    return dict(
      mixer=mixer,
      mixer_norm=dict(scale=get('input_layernorm')),
      feed_forward=dict(
        up=dict(kernel=get('mlp.gate_proj')),
        gate=dict(kernel=get('mlp.up_proj')),
        down=dict(kernel=get('mlp.down_proj')),
      ),
      feed_forward_norm=dict(scale=get('post_attention_layernorm')),
    )

  params = dict(
    embedding=dict(table=w['model.embed_tokens.weight']),
    output=dict(kernel=w['lm_head.weight'].T),
    norm=dict(scale=w['model.norm.weight']),
    stack={f'layers_{i}': dict(block_0=block(i)) for i in range(LAYERS)},
  )
  # Mistral's window counts the token itself, ours the tokens before it.
  mask = 'causal' if window is None else f'causal & window({window - 1})'
  assert_equal(
    logits(
      params,
      kv_heads=kv_heads,
      position=f'rope({theta})',
      mask=mask,
      norm='rmsnorm(1e-5)',
      tie_embeddings=False,
      feed_forward='swiglu',
      feed_forward_width=48,
    ),
    model,
  )
