"""The model of a partial config, to be trained by any loop."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from tfm.analysis.estimate import vocabulary_size_of
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.errors import require
from tfm.models.trunk import Trunk
from tfm.shapes import Array, PyTree
from tfm.training import state as states


@dataclasses.dataclass(frozen=True, eq=False)
class BuiltModel:
  """A model that is not trained.

  Attributes:
    experiment: of the resolved config: the source, tokenizer, objective, optimizer, … that it describes.
    model: a Flax module.
  """

  experiment: Experiment
  model: Trunk

  @property
  def config(self) -> ConfigDict:
    """The resolved config."""
    return self.experiment.config

  def init(self, key: Array) -> PyTree:
    """The initial parameters, with adapters if the config has any."""
    length, lora = self.config.data.length, self.experiment.lora
    return jax.jit(lambda key: nn.unbox(states.init_params(self.model, key, 1, length, lora)))(key)

  def apply(self, params: PyTree, *inputs: Array, dropout_key: Array | None = None) -> PyTree:
    """The model's output: logits [B, T, V] of the token after each; of an encoder, logits by name.

    Args:
      inputs: token ids [B, T]; for an encoder-decoder those of targets and of sources; for an image encoder
        images [B, H, W, Q]; for a diffusion model images, times [B] and classes [B]. Each row is one
        document, from position 0.
      dropout_key: None: no dropout.
    """
    arguments = self.model.arguments(*inputs, train=dropout_key is not None)
    keys = {} if dropout_key is None else dict(dropout=dropout_key)
    return self.model.apply({'params': params}, *arguments, rngs=keys)[0]


def build(config: Mapping | str, vocab: int | None = None) -> BuiltModel:
  """Builds the model of a config.

  Args:
    config: fields that differ from the defaults, such as dict(model=dict(layers=2, width=64, heads=4)); or
      the name or path of a config, such as 'gpt2:medium'.
    vocab: the number of tokens; None: as the config's tokenizer has, if the text does not decide.

  Raises:
    ValueError: for an invalid config; for a tokenizer whose vocabulary depends on the text, without `vocab`.
  """
  fields = load_config(config) if isinstance(config, str) else complete(config)
  experiment = Experiment(resolve_config(fields))
  data, source = experiment.config.data, experiment.source_tokenizer
  vocab = vocabulary_size_of(experiment.tokenizer) if vocab is None else vocab
  source_vocab = vocabulary_size_of(source) if source else 0
  require(
    vocab is not None,
    f'config.data.tokenizer={data.tokenizer!r} has as many tokens as its text needs; give vocab=…',
  )
  require(
    source_vocab is not None,
    f'config.data.source_tokenizer={data.source_tokenizer!r} has as many tokens as its text needs; leave it '
    'out',
  )
  return BuiltModel(experiment, experiment.build_model(vocab, source_vocab=source_vocab))
