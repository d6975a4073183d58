"""What can be drawn of a spec and of a config."""

import numpy as np
import pytest

from tfm.analysis import drawings
from tfm.config.assemble import Experiment
from tfm.config.names import FromTable
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.conformance import collect
from tfm.evaluation.panels import CurvesPanel, MaskPanel, TablePanel
from tfm.masks.protocol import table
from tfm.training.schedule import SCHEDULES


SIZES = dict(
  data=dict(length=24), model=dict(layers=1, width=16, heads=2), training=dict(steps=20, batch_size=8)
)


def draw(text, **fields):
  return drawings.draw_spec(text, complete(SIZES | fields))


def test_a_mask_has_the_length_of_the_config():
  [panel] = draw('causal & window(3)')
  assert isinstance(panel, MaskPanel) and panel.title == 'causal & window(3)'
  i = np.arange(24)
  visible = (i[:, None] >= i) & (i[:, None] - i <= 3)
  assert (table(panel.mask, panel.length) == visible).all()


def test_a_bias_is_that_of_a_query_in_the_middle():
  [panel] = draw('alibi')
  assert list(panel.x) == list(range(-12, 12))
  assert list(panel.curves) == ['head 0', 'head 1'] and not panel.note
  # Press et al. 2022: slopes 2^-4 and 2^-8 of 2 heads.
  for slope, values in zip((2**-4, 2**-8), panel.curves.values()):
    np.testing.assert_allclose(values, -slope * np.abs(panel.x))


def test_a_rotation_is_the_mean_cosine_of_the_angles():
  [panel] = draw('rope')
  [values] = panel.curves.values()
  angles = panel.x[:, None] * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
  np.testing.assert_allclose(values, np.cos(angles).mean(-1), atol=1e-6)


def test_what_is_added_to_tokens_is_a_table():
  [panel] = draw('sinusoidal')
  assert isinstance(panel, TablePanel) and panel.values.shape == (24, 16)
  np.testing.assert_allclose(np.square(panel.values).sum(-1), 8, rtol=1e-5)  # sin² + cos² of 8 frequencies


def test_learned_values_are_named_as_such():
  [panel] = draw('t5')
  assert panel.note == 'as initialized with seed 0'
  [panel] = draw('learned')
  assert panel.title == 'learned: added to tokens, as initialized with seed 0'


def test_a_schedule_has_the_rate_of_every_step():
  [panel] = draw('linear', optimizer=dict(learning_rate=1.0, warmup=4))
  [rates] = panel.curves.values()
  assert panel.x[0] == 1 and panel.x[-1] == 20
  np.testing.assert_allclose(rates[:4], [0.25, 0.5, 0.75, 1])
  np.testing.assert_allclose(rates[4:], np.linspace(15 / 16, 0, 16), atol=1e-6)


SPECS = [
  text
  for slot in ('mask', 'position')
  for name in collect.variants(slot)
  for text in collect.examples(slot, name)
]


@pytest.mark.sampled(15)
@pytest.mark.parametrize('text', [*SPECS, *SCHEDULES])
def test_every_variant_is_drawn_or_says_why_not(text, tmp_path):
  try:
    panels = draw(text)
  except ValueError as error:
    assert any(reason in str(error) for reason in ('depends on queries and keys', 'does nothing', 'image'))
    return
  for panel in panels:
    assert panel.title and panel.to_text()
    for values in panel.curves.values() if isinstance(panel, CurvesPanel) else ():
      assert values.shape == panel.x.shape and np.isfinite(values).all()


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('casual', "'casual' names 'casual', which none of config.model.mask, config.model.position, "),
    ('casual', "did you mean 'causal'?"),
    ('causal & rope', 'combines variants of several fields; draw them one by one'),
    ('none', "'none' does nothing that could be drawn"),
    ('deberta', "config.model.position='deberta' has a bias that depends on queries and keys"),
    ('window(', 'window('),
    ('', "''"),
  ],
)
def test_what_cannot_be_drawn_is_a_sentence(text, sentence):
  with pytest.raises(ValueError) as caught:
    draw(text)
  assert sentence in str(caught.value)


def test_a_name_of_two_slots_is_ambiguous(monkeypatch):
  monkeypatch.setattr(FromTable, 'list_names', lambda self: ('causal',))
  with pytest.raises(ValueError, match='fits several fields: config.model.mask, config.optimizer.schedule'):
    draw('causal')


def draw_config(**model):
  experiment = Experiment(resolve_config(complete(SIZES | dict(model=SIZES['model'] | model))))
  return drawings.draw_config(experiment, experiment.build_model(260))


def test_each_kind_of_block_is_drawn_once():
  panels, missing = draw_config(
    layers=3,
    position='alibi',
    pattern=('near', 'far', 'near'),
    blocks=dict(near=dict(mask='causal & window(2)'), far=dict()),
  )
  assert [panel.title for panel in panels] == [
    'near: causal & window(2)',
    'near, far: alibi: bias of the logits',
    'far: causal',
    'cosine',
  ]
  assert not missing


def test_a_mixer_without_a_mask_has_none_drawn():
  panels, _ = draw_config(mixer='mamba', position='none')
  assert [panel.title for panel in panels] == ['cosine']


def test_what_is_missing_of_a_config_is_said():
  panels, [reason] = draw_config(position='deberta')
  assert [panel.title for panel in panels] == ['causal', 'cosine'] and 'tfm attend' in reason
