"""The same weights give the same mixture and losses as the published implementations in transformers."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe  # noqa: E402
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE  # noqa: E402
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func  # noqa: E402
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP  # noqa: E402

from tfm.feed_forwards.mixture_of_experts import MixtureOfExperts  # noqa: E402
from tfm.layers.initializer import normal  # noqa: E402


B, T, D, F, E = 3, 20, 16, 12, 6
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D)).astype(np.float32)
VALID = DRAW.random((B, T)) > 0.3


def weights(module):
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.5)
  return {name: value.numpy() for name, value in module.eval().state_dict().items()}


def experts(w):
  """Mixtral's and DeepSeek's: the activated half of their fused projection is our `up`."""
  up, gate = np.split(w['experts.gate_up_proj'].swapaxes(1, 2), 2, -1)
  down = w['experts.down_proj'].swapaxes(1, 2)
  return dict(up=dict(kernel=up), gate=dict(kernel=gate), down=dict(kernel=down))


def shared_experts(w):
  names = dict(up='gate', gate='up', down='down')
  return {ours: dict(kernel=w[f'shared_experts.{theirs}_proj.weight'].T) for ours, theirs in names.items()}


def ours(params, valid=np.ones((B, T), bool), **settings):
  module = MixtureOfExperts(D, F, False, normal(), normal(), jnp.float32, experts=E, **settings)
  run = jax.jit(
    lambda params, x: module.apply({'params': params}, x, jnp.asarray(valid), mutable=['losses', 'metrics'])
  )
  return run(params, jnp.asarray(X))


def theirs(module):
  with torch.no_grad():
    return module(torch.tensor(X)).numpy()


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize('k', [2, 3])
def test_mixtral(k, record_difference):
  module = MixtralSparseMoeBlock(
    transformers.MixtralConfig(hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=k)
  )
  w = weights(module)
  params = dict(router=dict(kernel=w['gate.weight'].T), **experts(w))
  y = ours(params, top_k=k)[0]
  close(y, theirs(module))
  record_difference('feed_forward/mixture_of_experts', 'transformers', y, theirs(module))


@pytest.mark.parametrize('k', [1, 2, 4])
def test_mixtral_balance(k):
  """With padding, which has no part in it."""
  module = MixtralSparseMoeBlock(
    transformers.MixtralConfig(hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=k)
  )
  w = weights(module)
  params = dict(router=dict(kernel=w['gate.weight'].T), **experts(w))
  logits = torch.tensor(X.reshape(-1, D) @ w['gate.weight'].T)
  for valid in (np.ones((B, T), bool), VALID):
    expected = float(load_balancing_loss_func((logits,), E, k, torch.tensor(valid)))
    _, printed = ours(params, valid, top_k=k, normalize=k > 1, balance=1.0)
    assert printed['losses']['balance'] == pytest.approx((expected,), rel=1e-5)


@pytest.mark.parametrize('room', [2, 4, 20])
def test_switch(room):
  """One expert a token, weighed by its probability, with room for so many of a row."""
  module = SwitchTransformersSparseMLP(
    transformers.SwitchTransformersConfig(
      d_model=D, d_ff=F, num_experts=E, expert_capacity=room, dense_act_fn='relu'
    )
  )
  w = weights(module)

  def stacked(name):
    return dict(kernel=np.stack([w[f'experts.expert_{i}.{name}.weight'].T for i in range(E)]))

  params = dict(router=dict(kernel=w['router.classifier.weight'].T), up=stacked('wi'), down=stacked('wo'))
  y, printed = ours(params, top_k=1, normalize=False, activation='relu', capacity=room * E / T)
  close(y, theirs(module))
  assert (printed['metrics']['dropped'][0] > 0.01) == (room < T)


def test_deepseek():
  """Probabilities that do not sum to one, a factor on the mixture, shared experts."""
  module = DeepseekV2Moe(
    transformers.DeepseekV2Config(
      hidden_size=D,
      num_attention_heads=4,
      moe_intermediate_size=F,
      n_routed_experts=E,
      num_experts_per_tok=3,
      n_shared_experts=2,
      routed_scaling_factor=1.7,
      topk_method='greedy',
      norm_topk_prob=False,
    )
  )
  w = weights(module)
  params = dict(router=dict(kernel=w['gate.weight'].T), shared=shared_experts(w), **experts(w))
  close(ours(params, top_k=3, normalize=False, scale=1.7, shared=2)[0], theirs(module))


@pytest.mark.parametrize('normalize', [True, False])
def test_deepseek_v3(normalize, record_difference):
  """Sigmoids in place of probabilities, and biases that choose experts and do not weigh them."""
  module = DeepseekV3MoE(
    transformers.DeepseekV3Config(
      hidden_size=D,
      moe_intermediate_size=F,
      n_routed_experts=E,
      num_experts_per_tok=3,
      n_shared_experts=2,
      n_group=1,
      topk_group=1,
      routed_scaling_factor=2.5,
      norm_topk_prob=normalize,
    )
  )
  w, bias = weights(module), np.linspace(-0.3, 0.3, E, dtype=np.float32)
  module.gate.e_score_correction_bias.copy_(torch.tensor(bias))
  params = dict(router=dict(kernel=w['gate.weight'].T), shared=shared_experts(w), **experts(w))
  rule = dict(top_k=3, normalize=normalize, scale=2.5, shared=2, gate='sigmoid')
  y = ours(params | dict(balance_bias=bias), balance_bias=True, **rule)[0]
  close(y, theirs(module))
  assert np.abs(y - ours(params, **rule)[0]).max() > 0.1
  record_difference('feed_forward/mixture_of_experts', 'transformers', y, theirs(module))
