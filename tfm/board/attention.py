"""The attention of a run for a text, as a page."""

import functools
import pathlib

from ml_collections import ConfigDict

from tfm.config.schema import parts
from tfm.errors import require
from tfm.evaluation.attention_page import render_page
from tfm.runs import load
from tfm.runs.text_attention import compute_text_maps


def render_attention(workdir: pathlib.Path, name: str, text: str, target: str | None) -> str:
  """The page of `tfm attend` for the last checkpoint.

  Args:
    target: of an encoder-decoder; None: the model's translation.

  Raises:
    ValueError: for a run without a checkpoint, without attention weights, or of images; and as
      `compute_text_maps`.
  """
  checkpoints = workdir / 'checkpoints'
  require(checkpoints.is_dir(), f'{name} has no checkpoint yet')
  run = load_last(workdir, checkpoints.stat().st_mtime_ns)
  require(run.tokenizer is not None, f'{name} reads images; attention is shown of texts')
  maps, _ = compute_text_maps(run, text, target)
  require(bool(maps), f'{name} has no attention weights: its mixers compute none')
  return render_page(maps, f'Attention of {name}, step {run.step}')


@functools.lru_cache(maxsize=1)
def load_last(workdir: pathlib.Path, saved: int) -> load.Run:
  """The last checkpoint of a run; `saved` is when its checkpoints changed."""
  return load.load(str(workdir), override=use_any_kernel)


def use_any_kernel(config: ConfigDict) -> ConfigDict:
  """The config with the kernels of this machine."""
  for section in parts(config).values():
    section.kernel = 'auto'
  return config
