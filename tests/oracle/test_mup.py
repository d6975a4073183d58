"""muP against the package mup, its authors' code: initial values and rates of every kind of parameter."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
mup = pytest.importorskip('mup', reason='needs the extra [oracle]: make oracle')

import jax  # noqa: E402

from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.layers.parametrization import rate_factors  # noqa: E402
from tfm.parallel.sharding import Parameter  # noqa: E402
from tfm.training.gradient_transforms import path_name  # noqa: E402


VOCAB, BASE, WIDTH, DEVIATION = 500, 32, 256, 0.02
OURS = {
  'embedding.weight': 'embedding/table',
  'query.weight': 'stack/layers/block_0/mixer/q/kernel',
  'out.weight': 'stack/layers/block_0/mixer/out/kernel',
  'up.weight': 'stack/layers/block_0/feed_forward/up/kernel',
  'up.bias': 'stack/layers/block_0/feed_forward/up/bias',
  'down.weight': 'stack/layers/block_0/feed_forward/down/kernel',
  'norm.weight': 'norm/scale',
  'readout.weight': 'output/kernel',
}


class Theirs(torch.nn.Module):
  """The parameters of a decoder with one block, by the kinds that the package tells apart."""

  def __init__(self, width):
    super().__init__()
    self.embedding = torch.nn.Embedding(VOCAB, width)
    self.query, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
    self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width, bias=False)
    self.norm = torch.nn.LayerNorm(width, bias=False)
    self.readout = mup.MuReadout(width, VOCAB, bias=False)


def test_initial_values_and_rates():
  torch.manual_seed(0)
  theirs = Theirs(WIDTH)
  mup.set_base_shapes(theirs, Theirs(BASE), delta=Theirs(2 * BASE))
  parameters = dict(theirs.named_parameters())
  groups = mup.MuAdam(parameters.values(), lr=1.0).param_groups
  rates = {id(parameter): group['lr'] for group in groups for parameter in group['params']}

  config = complete(
    dict(
      model=dict(
        layers=1,
        width=WIDTH,
        heads=4,
        position='none',
        bias=True,
        tie_embeddings=False,
        depth_scaled=False,
        initializer=f'normal({DEVIATION})',
        embedding_initializer=f'normal({DEVIATION})',
        parametrization=f'mup(base_width={BASE})',
      )
    )
  )
  experiment = Experiment(resolve_config(config))
  model = experiment.build_model(VOCAB)
  drawn = jax.jit(model.init)(jax.random.key(0), *model.example(1, 8))['params']
  boxed, _ = jax.tree_util.tree_flatten_with_path(drawn, is_leaf=lambda x: isinstance(x, Parameter))
  boxes = {path_name(path): box for path, box in boxed}
  factors = rate_factors(experiment.parametrization, boxes, True, 'adam')

  for name, path in OURS.items():
    parameter = parameters[name]
    # The package divides the input of the readout by m, where the paper's table 3 divides its initial values
    # and its rate: with Adam both scale what it adds to the logits.
    divisor = theirs.readout.width_mult() if name == 'readout.weight' else 1
    assert factors[path] == pytest.approx(rates[id(parameter)] / divisor), name
    if parameter.ndim == 2:
      mup.init.normal_(parameter, std=DEVIATION)
      deviation = parameter.detach().numpy().std() / divisor
      np.testing.assert_allclose(np.std(boxes[path].value), deviation, rtol=0.03, err_msg=name)
