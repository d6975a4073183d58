"""`tfm sample`: a picture or an array of each class, and refusals."""

import numpy as np
import pytest

from tests.models.test_diffusion import config
from tfm.commands import cli
from tfm.commands.sample import draw_grid
from tfm.data.images import decode_png
from tfm.runs.train import train


def test_a_grid_has_a_row_for_each_class():
  images = np.stack([np.full((3, 8, 8, 1), value) for value in (-1.0, 0.0, 5.0)])[:2]
  images[1, 2] = 9.0  # too bright
  picture = draw_grid(images)
  side = 48 + 4
  assert picture.shape == (2 * side, 3 * side, 1) and picture.dtype == np.uint8
  assert picture[0, 0, 0] == 255 and picture[side // 2, side // 2, 0] == 0
  assert picture[side + 2, side + 2, 0] == 128 and picture[-3, -3, 0] == 255


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run') / 'dit'
  fields = {'training.steps': 2, 'training.batch_size': 8, 'training.evaluate_every': 2, 'model.layers': 1}
  train(config(**fields), folder)
  return folder


@pytest.mark.slow
class TestSample:
  def test_a_picture_and_an_array(self, workdir, tmp_path):
    words = ['sample', f'--workdir={workdir}', '--num_samples=2', '--steps=3', '--guidance=2']
    assert cli.main([*words, '--classes=1,7', f'--to={tmp_path}/some/a.npy']) == 0
    images = np.load(tmp_path / 'some' / 'a.npy')
    assert images.shape == (2, 2, 8, 8, 1) and np.isfinite(images).all()
    assert cli.main([*words, '--classes=7']) == 0
    picture = decode_png((workdir / 'samples.png').read_bytes())
    np.testing.assert_array_equal(picture, draw_grid(images[1:]))
    assert cli.main([*words, '--sampler=ddpm', f'--to={tmp_path}/all.png']) == 0
    assert decode_png((tmp_path / 'all.png').read_bytes()).shape == (10 * 52, 2 * 52, 1)

  @pytest.mark.parametrize(
    'words, sentence',
    [
      (['--classes=10'], '--classes: the model has no class 10; use some of 0 to 9'),
      (['--classes=a'], '--classes=a is no list of numbers'),
      (['--steps=2000'], '2000 steps of a sampler must be at least 1 and at most 1000'),
      (['--steps=0'], '--steps=0 must be at least 1'),
      (['--guidance=-1'], '--guidance=-1.0 must be at least 0'),
      (['--sampler=ddimm'], "did you mean 'ddim'"),
      (['--sampler=euler'], "sampler='euler' follows straight paths"),
      (['--to=a.jpg'], '--to=a.jpg must end in .png or .npy'),
    ],
  )
  def test_refusals(self, workdir, words, sentence, capsys):
    assert cli.main(['sample', f'--workdir={workdir}', *words]) == 2
    assert sentence in capsys.readouterr().err

  @pytest.mark.parametrize(
    'words, sentence',
    [
      (['generate', '--prompt=a'], 'holds a diffusion model, which generates no text; use tfm sample'),
      (['export', '--format=stablehlo', '--to=out'], 'this format has one call; use safetensors'),
    ],
  )
  def test_other_commands_refuse_it(self, workdir, words, sentence, capsys):
    assert cli.main([words[0], f'--workdir={workdir}', *words[1:]]) == 2
    assert sentence in capsys.readouterr().err
