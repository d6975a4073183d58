"""DeepNorm: α and β of the paper's three kinds of model, and where a model takes them from."""

import jax
import numpy as np
import pytest

from tests.models import pairs
from tfm.config.assemble import Experiment
from tfm.conformance import tiny
from tfm.residuals.deepnorm import DeepNorm
from tfm.residuals.protocol import Depth


# α⁴ and β⁻⁴, or their sixteenth powers.
@pytest.mark.parametrize(
  'depth, power, alpha, beta',
  [
    (Depth(0, 18, False), 4, 36, 144),
    (Depth(12, 0, True), 4, 24, 96),
    (Depth(6, 4, False), 4, 12, 48),
    (Depth(6, 4, True), 16, 0.81**16 * 6**4 * 4, 0.87**-16 * 6**4 * 4),
  ],
  ids=str,
)
def test_scales(depth, power, alpha, beta):
  scales = DeepNorm(depth=depth).scales
  np.testing.assert_allclose((scales[0] ** power, scales[1] ** -power), (alpha, beta), rtol=1e-9)


def test_a_model_gives_its_depth():
  post = dict(residual='deepnorm', norm_placement='post')
  decoder = Experiment(tiny.config(layers=5, **post)).build_model(20)
  assert [block.args[4].depth for block in decoder.stack.args[0]] == [(0, 5, False)]
  config = pairs.config(
    **post, layers=3, encoder=dict(layers=4, pattern=('near',)), blocks=dict(near=dict(mask='window(2)'))
  )
  both = Experiment(config).build_model(20)
  assert [block.args[4].depth for block in both.stack.args[0]] == [(4, 3, False)]
  assert [block.args[4].depth for block in both.encoder.keywords['stack'].args[0]] == [(4, 3, True)]


def test_cross_attention_starts_as_small():
  post = dict(residual='deepnorm', norm_placement='post', initializer='normal(0.02)')
  model = Experiment(pairs.config(**post)).build_model(20)
  shapes = jax.eval_shape(model.init, jax.random.key(0), *model.example(1, 8))['params']
  names = {
    part: [
      shapes['stack']['layers']['block_0'][part][name]['kernel'].initializer for name in ('q', 'v', 'out')
    ]
    for part in ('mixer', 'cross')
  }
  beta = f'normal(0.02) · {24**-0.25:.4g}'
  assert names == dict.fromkeys(('mixer', 'cross'), ['normal(0.02)', beta, beta])


@pytest.mark.parametrize(
  'model, message',
  [
    (dict(norm_placement='pre'), "config.model.residual='deepnorm' is defined for norm_placement='post'"),
    (
      dict(norm_placement='post', mixer='mamba', position='none'),
      "config.model.residual='deepnorm' scales the initial projections to values, and mixer='mamba' has none",
    ),
  ],
)
def test_refusals(model, message):
  with pytest.raises(ValueError, match=message):
    Experiment(tiny.config(residual='deepnorm', **model)).build_model(20)
