"""Every published size of BERT, GPT-2, LLaMA, T5 and ViT has the published parameter count.

The published counts are those of the released weights, by the model cards of transformers (the tensors'
metadata, or `num_parameters()` for older ones). BERT's are those of pre-training, with both heads; ViT's
are timm's, with 1000 classes. The papers are coarser. Touvron et al. 2023a, Table 2: 6.7, 13.0, 32.5 and
65.2 B (the last one truncated, not rounded). The Llama 3.2 model card: 1.23 and 3.21 B. Raffel et al.
2020, §3.7: "about" 60, 220 and 770 million, 2.8 and 11 B for T5 1.0; the released weights of large have
738 million. Radford et al. 2019, Table 2: 117, 345, 762 and 1542 million, which the GPT-2 repository
corrects to 124, 355, 774 and 1558.

The padding of the embedding table is excluded, except for T5, whose released table has 32,128 rows for
32,100 tokens.
"""

import math

import flax.linen as nn
import jax
import pytest
from rich import box
from rich.console import Console
from rich.table import Column, Table

from tests.paths import ROOT
from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.training import state as states


PUBLISHED = {
  'bert': {'base': 110_106_428, 'large': 336_226_108},
  'gpt2': {'small': 124_439_808, 'medium': 354_823_168, 'large': 774_030_080, 'xl': 1_557_611_200},
  'llama': {
    '1-7b': 6_738_415_616,
    '1-13b': 13_015_864_320,
    '1-33b': 32_528_943_616,
    '1-65b': 65_285_660_672,
    '2-7b': 6_738_415_616,
    '2-13b': 13_015_864_320,
    '2-70b': 68_976_648_192,
    '3-8b': 8_030_261_248,
    '3-70b': 70_553_706_496,
    '3.1-8b': 8_030_261_248,
    '3.1-70b': 70_553_706_496,
    '3.1-405b': 405_853_388_800,
    '3.2-1b': 1_235_814_400,
    '3.2-3b': 3_212_749_824,
  },
  't5': {
    'small': 60_506_624,
    'base': 222_903_552,
    'large': 737_668_096,
    '3b': 2_851_598_336,
    '11b': 11_307_321_344,
    '1.1-small': 76_961_152,
    '1.1-base': 247_577_856,
    '1.1-large': 783_150_080,
    '1.1-xl': 2_849_757_184,
    '1.1-xxl': 11_135_332_352,
  },
  'clip': {'b32': 151_277_313, 'b16': 149_620_737, 'l14': 427_616_513},
  'vit': {'ti16': 5_717_416, 's16': 22_050_664, 'b16': 86_567_656, 'b32': 88_224_232, 'l16': 304_326_632},
}
# Sizes that were never published.
OURS = {'bert': ('tiny',), 'clip': ('digits',), 'vit': ('digits',)}
# vocab_multiple for families whose published table is padded, or that have none.
VOCAB_MULTIPLE = {'t5': 128, 'vit': 128}
# The published vocabulary, if the tokenizer of the config has another.
VOCAB = {'clip': 49_408}


def resolve_size(family, name):
  return resolve_config(load_config(f'{ROOT}/configs/{family}.py:{name}'))


def count_parameters(family, name):
  config = resolve_size(family, name)
  config.model.vocab_multiple = VOCAB_MULTIPLE.get(family, 1)
  vocab = VOCAB.get(family) or estimate.vocabulary_size_of(Experiment(config).tokenizer)
  model = Experiment(config).build_model(vocab)
  boxed = jax.eval_shape(lambda key: states.init_params(model, key, 1, 8), jax.random.key(0))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(boxed)))


@pytest.mark.slow
def test_every_size_has_the_published_parameters(capsys):
  counts = {
    (family, name): count_parameters(family, name) for family, sizes in PUBLISHED.items() for name in sizes
  }
  numbers = (Column(title, justify='right') for title in ('parameters', 'published'))
  table = Table('config', *numbers, box=box.SIMPLE, title='Published families')
  for (family, name), count in counts.items():
    table.add_row(f'{family}.py:{name}', f'{count:,}', f'{PUBLISHED[family][name]:,}')
  with capsys.disabled():
    Console(width=90).print(table)
  assert counts == {
    (family, name): count for family, sizes in PUBLISHED.items() for name, count in sizes.items()
  }


@pytest.mark.parametrize('family', PUBLISHED)
def test_every_size_is_published_and_valid(family):
  namespace = {}
  exec((ROOT / 'configs' / f'{family}.py').read_text(), namespace)
  assert list(namespace['SIZES']) == [*PUBLISHED[family], *OURS.get(family, ())]
  for name in PUBLISHED[family]:
    config = resolve_size(family, name)
    validate_run(Experiment(config), 256)
    Experiment(config).build_optimizer()


@pytest.mark.parametrize('family', PUBLISHED)
def test_an_unknown_size_is_rejected(family):
  with pytest.raises(ValueError, match=rf"configs/{family}\.py has no '9b'; known: .*smoke"):
    load_config(f'{ROOT}/configs/{family}.py:9b')
