"""Synthetic results: a base, and arms at given distances from it."""

import math

import numpy as np


def results(shifts, seeds=range(3), base='rope', failed=(), diverged=None, **study):
  """Results of one arm for each name and shift of its loss.

  Of the noise of a run, seeds have 0.01 in common, and 0.002 is its own. A run that diverged has no values.
  """
  draw, diverged = np.random.default_rng(0), diverged or {}
  noise = {seed: draw.normal(0, 0.01) for seed in seeds}
  fields = dict(arms=[], values=[], curves=[])
  for i, (name, shift) in enumerate(shifts.items()):
    fields['arms'].append(
      dict(
        name=name,
        changes={'model.position': name},
        matched={'model.feed_forward': [512, 500 + i]},
        parameters=841_216 + 100_000 * i,
        flops_per_token=5.04e6,
        memory_bytes=None,
        tokens_per_second=8192 / (0.2 + i / 100),
        diverged=diverged.get(name, []),
        error=failed[name] if name in failed else None,
      )
    )
    if name in failed:
      continue
    for seed in seeds:
      loss = 2.0 + shift + noise[seed] + draw.normal(0, 0.002)
      values = [('loss', None, loss), ('accuracy', None, 1.4 - loss / 2)]
      values += [('loss_at_length', x, loss + math.log2(x / 64)) for x in (64, 128, 256)]
      values += [('loss_by_position', x, loss + 1 / (1 + x)) for x in range(0, 40, 4)]
      if seed not in diverged.get(name, []):
        fields['values'] += [dict(arm=name, seed=seed, metric=m, x=x, value=float(v)) for m, x, v in values]
      fields['curves'] += [
        dict(arm=name, seed=seed, split=split, step=step, loss=float(loss + 3 * math.exp(-step / 20)))
        for split in ('train', 'validation')
        for step in range(0, 101, 10)
      ]
  return dict(
    study=dict(
      name='position',
      question='Which position reads on?',
      literature='Press et al. (2022), https://arxiv.org/abs/2108.12409.',
      base=base,
      metric='loss',
      lower_is_better=True,
      match='parameters',
      seeds=list(seeds),
      length=128,
      command='tfm ablate experiments/position.py',
      versions={'jax': '0.10.2'},
      machine='2 CPU cores',
      data={'stdlib': '3f2a9c81'},
      date='2026-11-22',
      seconds=83.2,
    )
    | study,
    **fields,
  )
