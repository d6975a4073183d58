"""What the papers state of their training, typed in from the papers: the configs must train so."""

import jax
import pytest

from tests.paths import ROOT
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.training import state as states


# Config → (section of the paper, field → value). optimizer.name.b2 is the argument b2 of the optimizer.
VASWANI = 'Vaswani et al. 2017, Table 3, §5.3, §5.4, §6.1'
BERT = 'Devlin et al. 2019, App. A.2'
GPT3 = 'Radford et al. 2019, §2.3; Brown et al. 2020, Table 2.1, App. B'
LLAMA1 = 'Touvron et al. 2023a, Table 2, §2.3'
LLAMA2 = 'Touvron et al. 2023b, §2.2, Table 1'
LLAMA3 = 'Llama Team 2024, Table 3'
ADAM_2017 = {
  'optimizer.name.b1': 0.9,
  'optimizer.name.b2': 0.98,
  'optimizer.name.eps': 1e-9,
  'optimizer.warmup': 4000,
}
SEARCH_2017 = {
  'objective.label_smoothing': 0.1,
  'decoding.beams': 4,
  'decoding.length_penalty': 'gnmt(0.6)',
  'decoding.max_extra_tokens': 50,
}
ADAMW_LLAMA = {
  'optimizer.name.b1': 0.9,
  'optimizer.name.b2': 0.95,
  'optimizer.name.weight_decay': 0.1,
  'optimizer.clip': 1.0,
}
VALUES = {
  'vaswani2017.py': (
    VASWANI,
    ADAM_2017
    | SEARCH_2017
    | {
      'model.layers': 6,
      'model.width': 512,
      'model.heads': 8,
      'model.feed_forward_width': 2048,
      'model.dropout.residual': 0.1,
      'training.steps': 100_000,
      'decoding.average_checkpoints': 5,
    },
  ),
  'vaswani2017.py:big': (
    VASWANI,
    ADAM_2017
    | SEARCH_2017
    | {
      'model.width': 1024,
      'model.heads': 16,
      'model.feed_forward_width': 4096,
      'model.dropout.residual': 0.3,
      'training.steps': 300_000,
      'decoding.average_checkpoints': 20,
    },
  ),
  'bert.py': (
    BERT,
    {
      'optimizer.learning_rate': 1e-4,
      'optimizer.name.b1': 0.9,
      'optimizer.name.b2': 0.999,
      'optimizer.name.weight_decay': 0.01,
      'optimizer.warmup': 10_000,
      'optimizer.schedule': 'linear',
      'model.dropout.embedding': 0.1,
      'model.dropout.attention': 0.1,
      'model.dropout.residual': 0.1,
      'model.feed_forward': 'gelu',
      'training.batch_size': 256,
      'training.steps': 1_000_000,
    },
  ),
  **{
    f'gpt2.py:{size}': (
      GPT3,
      {
        'optimizer.learning_rate': rate,
        'optimizer.name.b1': 0.9,
        'optimizer.name.b2': 0.95,
        'optimizer.name.weight_decay': 0.1,
        'optimizer.clip': 1.0,
        'training.batch_size': 512,
        'data.length': 1024,
      },
    )
    for size, rate in dict(small=6e-4, medium=3e-4, large=2.5e-4, xl=2e-4).items()
  },
  **{
    f'llama.py:1-{size}': (LLAMA1, ADAMW_LLAMA | {'optimizer.learning_rate': rate, 'optimizer.warmup': 2000})
    for size, rate in {'7b': 3e-4, '13b': 3e-4, '65b': 1.5e-4}.items()
  },
  **{
    f'llama.py:2-{size}': (
      LLAMA2,
      ADAMW_LLAMA
      | {
        'optimizer.learning_rate': rate,
        'optimizer.warmup': 2000,
        'optimizer.name.eps': 1e-5,
        'data.length': 4096,
      },
    )
    for size, rate in {'7b': 3e-4, '13b': 3e-4, '70b': 1.5e-4}.items()
  },
  **{
    f'llama.py:{size}': (LLAMA3, ADAMW_LLAMA | {'optimizer.learning_rate': rate, 'data.length': 8192})
    for size, rate in {'3-8b': 3e-4, '3-70b': 1.5e-4, '3.1-405b': 8e-5}.items()
  },
  'clip.py:b32': (
    'Radford et al. 2021, Tables 18 and 20, §2.4',
    {
      'optimizer.name.b1': 0.9,
      'optimizer.name.b2': 0.98,
      'optimizer.name.eps': 1e-6,
      'optimizer.name.weight_decay': 0.2,
      'optimizer.learning_rate': 5e-4,
      'optimizer.warmup': 2000,
      'training.batch_size': 32_768,
      'data.length': 77,
      'model.layers': 12,
      'model.width': 512,
      'model.heads': 8,
      'model.encoder.layers': 12,
      'model.encoder.width': 768,
      'model.encoder.heads': 12,
      'model.patch': 32,
    },
  ),
  'vit.py': (
    'Dosovitskiy et al. 2021, Table 3 (ImageNet), App. B.1',
    {
      'optimizer.learning_rate': 3e-3,
      'optimizer.name.b1': 0.9,
      'optimizer.name.b2': 0.999,
      'optimizer.name.weight_decay': 0.3,
      'optimizer.warmup': 10_000,
      'model.dropout.residual': 0.1,
      'training.batch_size': 4096,
    },
  ),
  **{
    f'shakespeare_char.py{arg}': (
      'nanoGPT, config/train_shakespeare_char.py, README (cpu), model.py, train.py',
      {
        'data.length': length,
        'model.layers': layers,
        'model.heads': layers,
        'model.width': width,
        'model.bias': False,
        'model.tie_embeddings': True,
        'model.dropout.embedding': dropout,
        'model.dropout.attention': dropout,
        'model.dropout.residual': dropout,
        'optimizer.learning_rate': 1e-3,
        'optimizer.name.b1': 0.9,
        'optimizer.name.b2': 0.99,
        'optimizer.name.weight_decay': 0.1,
        'optimizer.clip': 1.0,
        'optimizer.warmup': 100,
        'training.batch_size': batch_size,
        'training.steps': steps,
      },
    )
    for arg, length, layers, width, dropout, batch_size, steps in (
      ('', 256, 6, 384, 0.2, 64, 5000),
      (':cpu', 64, 4, 128, 0.0, 12, 2000),
    )
  },
  't5.py': (
    'Raffel et al. 2020, §3.1.2, §3.7',
    {
      'model.dropout.residual': 0.1,
      'training.batch_size': 2048,
      'training.steps': 1_000_000,
      'data.length': 512,
    },
  ),
}


def load(name):
  return resolve_config(load_config(f'{ROOT}/configs/{name}'))


def tokens_per_step(config):
  return config.training.batch_size * config.data.length


def read(config, field):
  """The value of a field, or of the argument of the spec in a field."""
  fields = dict(leaves(config))
  if field in fields:
    return fields[field]
  field, _, argument = field.rpartition('.')
  return spec.parse(fields[field]).kwargs[argument]


@pytest.mark.parametrize(
  'name, field',
  [
    pytest.param(name, field, id=f'{name} {field} ({source})')
    for name, (source, values) in VALUES.items()
    for field in values
  ],
)
def test_a_config_has_the_papers_value(name, field):
  assert read(load(name), field) == VALUES[name][1][field]


@pytest.mark.parametrize(
  'name, step, expected',
  [
    # d^-0.5 min(step^-0.5, step · warmup^-1.5)
    ('vaswani2017.py', 4000, 512**-0.5 * 4000**-0.5),
    ('vaswani2017.py', 100, 512**-0.5 * 100 * 4000**-1.5),
    ('vaswani2017.py:big', 16_000, 1024**-0.5 * 16_000**-0.5),
    # Warmed up linearly over 10,000 steps, decayed linearly.
    ('bert.py', 5_000, 0.5e-4),
    ('bert.py', 505_000, 0.5e-4),
    # 1/√max(n, 10^4)
    ('t5.py', 100, 0.01),
    ('t5.py', 10_000, 0.01),
    ('t5.py', 40_000, 0.005),
    # A cosine to a tenth of the peak.
    ('llama.py:1-7b', 1000, 1.5e-4),
    ('llama.py:2-70b', 10**9, 1.5e-5),
    ('gpt2.py', 572_000, 6e-5),
    ('vit.py', 94_000, 0.0),
    ('shakespeare_char.py', 5000, 1e-4),
    ('shakespeare_char.py:cpu', 1050, 5.5e-4),
  ],
)
def test_the_learning_rate_at_a_step(name, step, expected):
  """Papers count steps from 1, optax counts the updates made before."""
  rate = Experiment(load(name)).learning_rate
  assert float(rate(step - 1)) == pytest.approx(expected, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize(
  'name, tokens',
  [
    ('gpt2.py', 300e9),
    ('llama.py:1-7b', 1e12),
    ('llama.py:1-65b', 1.4e12),
    ('llama.py:2-7b', 2e12),
    ('t5.py', 1e12),
  ],
)
def test_training_sees_the_papers_number_of_tokens(name, tokens):
  config = load(name)
  assert config.training.steps * config.training.batch_size * config.data.length == pytest.approx(
    tokens, rel=0.05
  )


def test_warmup_of_gpt_is_375_million_tokens():
  config = load('gpt2.py')
  assert config.optimizer.warmup * config.training.batch_size * config.data.length == pytest.approx(
    375e6, rel=0.01
  )


@pytest.mark.parametrize('arg, million', [('', 10.65), (':cpu', 0.80)])
def test_the_character_model_has_the_parameters_that_nanogpt_prints(arg, million):
  """For the 65 characters of its text, and without the table of positions."""
  config = load(f'shakespeare_char.py{arg}')
  model = Experiment(config).build_model(65)
  boxed = jax.eval_shape(lambda key: states.init_params(model, key, 1, config.data.length), jax.random.key(0))
  count = sum(x.size for x in jax.tree.leaves(boxed)) - config.data.length * config.model.width
  assert round(count / 1e6, 2) == million


def test_vit_trains_for_300_epochs():
  config = load('vit.py')
  assert config.training.steps * config.training.batch_size == pytest.approx(300 * 1_281_167, rel=0.01)
