"""The diffusion transformer, its schedules and its samplers are those of diffusers (PyTorch).

Three things that diffusers has otherwise are as in the released code of DiT: the wavelengths of the time
(`downscale_freq_shift`), one embedding of time and class for all blocks, and, as in all of `sinusoidal_2d`,
the row before the column.
"""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
library = pytest.importorskip(
  'diffusers.models.transformers.dit_transformer_2d', reason='needs the extra [oracle]: make oracle'
)

schedulers = pytest.importorskip('diffusers.schedulers', reason='needs the extra [oracle]: make oracle')

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from tests.models.test_diffusion import build_diffusion  # noqa: E402
from tfm.decoding.denoising import SAMPLERS, denoise  # noqa: E402
from tfm.layers.diffusion_path import PATHS, separate  # noqa: E402


D, H, L, P, Q, SIDE = 16, 4, 2, 2, 1, 8
TIMES, CLASSES = np.array([3, 870, 999]), np.array([4, 10, 0])


def published():
  """The model with random parameters."""
  theirs = library.DiTTransformer2DModel(
    num_attention_heads=H,
    attention_head_dim=D // H,
    in_channels=Q,
    out_channels=2 * Q,
    num_layers=L,
    sample_size=SIDE,
    patch_size=P,
    num_embeds_ada_norm=10,
    norm_eps=1e-6,
    norm_num_groups=Q,
  ).eval()
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.copy_(0.3 * torch.randn_like(parameter))
    first = theirs.transformer_blocks[0].norm1.emb
    first.time_proj.downscale_freq_shift = 0
    for block in theirs.transformer_blocks:
      block.norm1.emb = first
    column, row = theirs.pos_embed.pos_embed.clone().chunk(2, -1)
    theirs.pos_embed.pos_embed.copy_(torch.cat([row, column], -1))
  return theirs


def linear(module, *shape):
  weight = module.weight.detach().numpy().T
  bias = module.bias.detach().numpy()
  return dict(kernel=weight.reshape(D, *shape) if shape else weight, bias=bias.reshape(shape or -1))


def convert(theirs):
  """The parameters as `tfm` has them, unscanned."""

  def block(b):
    modulation, attention = linear(b.norm1.linear, 6, D), b.attn1
    halves = [
      dict(projection=dict(kernel=modulation['kernel'][:, part], bias=modulation['bias'][part]))
      for part in (slice(3), slice(3, 6))
    ]
    out = linear(attention.to_out[0])
    projections = {name: linear(getattr(attention, f'to_{name}'), H, D // H) for name in 'qkv'}
    return dict(
      mixer=projections | dict(out=dict(kernel=out['kernel'].reshape(H, D // H, D), bias=out['bias'])),
      feed_forward=dict(up=linear(b.ff.net[0].proj), down=linear(b.ff.net[2])),
      mixer_modulation=halves[0],
      feed_forward_modulation=halves[1],
    )

  embedding, patches = theirs.transformer_blocks[0].norm1.emb, theirs.pos_embed.proj
  kernel = patches.weight.detach().numpy().transpose(2, 3, 1, 0).reshape(-1, D)
  params = dict(
    patches=dict(kernel=kernel, bias=patches.bias.detach().numpy()),
    time_in=linear(embedding.timestep_embedder.linear_1),
    time_out=linear(embedding.timestep_embedder.linear_2),
    class_table=dict(table=embedding.class_embedder.embedding_table.weight.detach().numpy()),
    modulation=dict(projection=linear(theirs.proj_out_1, 2, D)),
    output=linear(theirs.proj_out_2),
    stack={f'layers_{i}': dict(block_0=block(b)) for i, b in enumerate(theirs.transformer_blocks)},
  )
  return jax.tree.map(jnp.asarray, params)


def test_predictions(record_difference):
  theirs = published()
  model, shapes = build_diffusion(objective='diffusion(10, learned_variance=True)')
  params = convert(theirs)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  images = np.random.default_rng(0).standard_normal((3, SIDE, SIDE, Q)).astype(np.float32)
  with torch.no_grad():
    expected = theirs(
      torch.tensor(images).permute(0, 3, 1, 2), torch.tensor(TIMES), torch.tensor(CLASSES)
    ).sample
  expected = expected.permute(0, 2, 3, 1).numpy()
  arguments = model.arguments(images, jnp.asarray(TIMES, jnp.float32), jnp.asarray(CLASSES))
  got = jax.jit(model.apply)({'params': params}, *arguments)[0]
  record_difference('residual/adaln_zero', 'diffusers', got, expected)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


SCHEDULES = [('linear', 'linear'), ('cosine', 'squaredcos_cap_v2')]
PREDICTIONS = {'epsilon': 'epsilon', 'v': 'v_prediction'}


@pytest.mark.parametrize('name, theirs', SCHEDULES)
def test_schedules(name, theirs):
  kept = schedulers.DDPMScheduler(beta_start=1e-4, beta_end=0.02, beta_schedule=theirs).alphas_cumprod
  np.testing.assert_allclose(PATHS[name]().alpha_bars, kept.numpy(), rtol=1e-4)


def predict(x, t):
  """A model that is only a function."""
  return 0.3 * x + 0.001 * t


@pytest.mark.parametrize('name, schedule', SCHEDULES)
@pytest.mark.parametrize('prediction', PREDICTIONS)
def test_ddim_follows_the_same_path(name, schedule, prediction):
  theirs = schedulers.DDIMScheduler(
    beta_start=1e-4,
    beta_end=0.02,
    beta_schedule=schedule,
    prediction_type=PREDICTIONS[prediction],
    clip_sample=False,
  )
  theirs.set_timesteps(1000)
  start = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
  x = torch.tensor(start, dtype=torch.float64)
  for t in theirs.timesteps:
    x = theirs.step(predict(x, int(t)), t, x).prev_sample
  keys = jax.random.split(jax.random.key(0), 4)
  got = denoise(predict, PATHS[name](), prediction, SAMPLERS['ddim'](), jnp.asarray(start), keys, 1000)
  np.testing.assert_allclose(
    got, x.numpy(), rtol=0, atol=1e-4 * np.abs(x.numpy()).max()
  )  # 1000 steps in float32


@pytest.mark.parametrize('prediction', PREDICTIONS)
def test_ddpm_has_the_same_mean(prediction):
  theirs = schedulers.DDPMScheduler(
    beta_start=1e-4, beta_end=0.02, prediction_type=PREDICTIONS[prediction], clip_sample=False
  )
  path, t, x = PATHS['linear'](), 400, np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
  at = path.coefficients(jnp.full(4, t))
  now, then = (path.coefficients(jnp.array(time)) for time in (t, t - 1))
  data, noise = separate(prediction, predict(jnp.asarray(x), t), jnp.asarray(x), at)
  mean = SAMPLERS['ddpm']().step(data, noise, now, then, jnp.zeros_like(x), None)
  shifted = SAMPLERS['ddpm']().step(data, noise, now, then, jnp.ones_like(x), None)
  np.testing.assert_allclose(np.square(shifted - mean), theirs._get_variance(t).numpy(), rtol=1e-2)
  step = theirs.step(
    predict(torch.tensor(x), t), t, torch.tensor(x), generator=torch.Generator().manual_seed(0)
  )
  fresh = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
  expected = step.prev_sample.numpy() - np.sqrt(theirs._get_variance(t).numpy()) * fresh.numpy()
  np.testing.assert_allclose(mean, expected, rtol=1e-3, atol=1e-3)
