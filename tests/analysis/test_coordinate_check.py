"""Under muP activations move as far at any width; otherwise they move farther in wide models."""

import pytest

from tfm.analysis.coordinate_check import measure_coordinates
from tfm.commands import cli
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config


WIDTHS = 64, 128, 256, 512
GPT = dict(heads=4, initializer='lecun_normal')
# Heads are added, two of them for one of keys, and embeddings are scaled by √D of the base width.
LLAMA = dict(kv_heads=2, head_width=16, norm='rmsnorm', feed_forward='swiglu', scale_embeddings=True)


def config(width, parametrization, **fields):
  made = complete(dict(model=dict(layers=2, width=width, scan=False, parametrization=parametrization)))
  for name, value in fields.items():
    assign(made, f'model.{name}', value)
  made.data.update(source='stdlib', length=64)
  made.training.update(batch_size=8, steps=10)
  made.optimizer.update(learning_rate=3e-3, schedule='constant', warmup=0)
  return resolve_config(made)


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields, argument', [(GPT, ''), (LLAMA, ', base_head_width=16')], ids=['gpt', 'llama']
)
def test_only_the_standard_parametrization_moves_with_the_width(fields, argument):
  heads = {} if 'heads' in fields else {width: dict(heads=width // 16) for width in WIDTHS}
  exponents = {}
  for text in ('standard', f'mup(base_width=64{argument})'):
    configs = [config(width, text, **fields, **heads.get(width, {})) for width in WIDTHS]
    exponents[text] = measure_coordinates(configs, steps=4).exponents()
  standard, mup = exponents.values()
  assert len(mup) == 3  # two blocks and the logits
  assert all(abs(exponent) < 0.15 for exponent in mup.values()), mup
  assert all(exponent > 0.5 for exponent in standard.values()), standard


@pytest.mark.slow
def test_the_command(book, capsys, tmp_path):
  picture = tmp_path / 'coordinates.png'
  words = [f'--config.data.source=text({str(book)!r})', '--widths=16,32', '--steps=1', f'--to={picture}']
  assert cli.main(['coordinates', '--config=lm:smoke', '--config.model.layers=1', *words]) == 0
  printed = capsys.readouterr().out
  assert 'width 32' in printed and 'logits' in printed and picture.stat().st_size > 1000


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--widths=16'], '--widths=16 must be two or more widths'),
    (['--widths=16,x'], '--widths=16,x must be two or more widths'),
    (['--widths=16,32', '--steps=0'], '--steps=0 must be at least 1'),
    (['--widths=16,32', '--config.model.architecture=encoder'], "config.model.architecture='encoder' is not"),
  ],
)
def test_what_is_refused(flags, message, capsys):
  assert cli.main(['coordinates', '--config=lm:smoke', *flags]) == 2
  assert message in capsys.readouterr().err
