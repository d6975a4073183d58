"""A study validates its fields."""

import pytest
from ml_collections import ConfigDict

from tfm.studies.study import Study, compare_within, load_study, product, select_arms


ARMS = {'rope': {'model.position': 'rope'}, 'alibi': {'model.position': 'alibi'}}


def study(**fields):
  return Study(**dict(question='Which?', config=ConfigDict(), arms=ARMS, base='rope') | fields)


def test_within_a_product():
  arms = product(ARMS, {'pre': {'model.norm_placement': 'pre'}, 'post': {'model.norm_placement': 'post'}})
  assert compare_within(arms, 'rope') == {
    'rope + pre': 'rope + pre',
    'rope + post': 'rope + post',
    'alibi + pre': 'rope + pre',
    'alibi + post': 'rope + post',
  }
  study(arms=arms, base='rope + pre', against=compare_within(arms, 'rope'))


def test_a_product_of_axes():
  arms = product(ARMS, {'pre': {'model.norm_placement': 'pre'}, 'post': {'model.norm_placement': 'post'}})
  assert list(arms) == ['rope + pre', 'rope + post', 'alibi + pre', 'alibi + post']
  assert arms['alibi + post'] == {'model.position': 'alibi', 'model.norm_placement': 'post'}
  with pytest.raises(ValueError, match=r'two axes of product\(\) change model.position, in rope \+ rope'):
    product(ARMS, ARMS)


SIZES = {width: {'model.width': int(width)} for width in ('16', '32', '64')}


def scaled(**fields):
  arms = product(ARMS, SIZES)
  scales = dict(arms=arms, base='rope + 16', against=compare_within(arms, 'rope'), scales=tuple(SIZES))
  return study(**scales | fields)


def test_scales():
  assert scaled().scales == ('16', '32', '64')


def test_tasks_and_scales_are_one_axis():
  assert scaled(scales=(), tasks=tuple(SIZES)).matched_to('alibi + 32') == 'rope + 32'
  for fields, sentence in (
    (dict(tasks=('16', '32', '64')), 'are one axis; remove one of them'),
    (dict(scales=(), tasks=('16',)), "tasks=('16',) are too few to aggregate; use at least two"),
    (dict(scales=(), tasks=('16', '32')), "tasks=('16', '32'): the arm 'rope + 64' is at none of them"),
    (dict(scales=(), tasks=tuple(SIZES), solved_at=0.5), 'solved_at=0.5 counts runs; remove one of them'),
  ):
    with pytest.raises(ValueError) as refusal:
      scaled(**fields)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(scales=('16', '32')), "scales=('16', '32') are too few to fit a curve"),
    (
      dict(scales=('16', '32', '64', '128')),
      "the arm 'rope + 128' is missing; use arms=product(ARMS, SCALES)",
    ),
    (dict(scales=('16', '32', '64', '16')), 'has a duplicate'),
    (
      dict(arms=product(ARMS, SIZES) | {'none': {}}),
      "scales=('16', '32', '64'): the arm 'none' is at none of them",
    ),
    (dict(against={}), "the arm 'rope + 32' is compared with one at another of scales, '16'"),
    (dict(solved_at=0.5), "scales=('16', '32', '64') fit curves of a loss, and not of shares"),
    (dict(higher_is_better=True), 'fit curves of a loss'),
  ],
)
def test_invalid_scales_are_rejected(fields, sentence):
  with pytest.raises(ValueError) as refusal:
    scaled(**fields)
  assert sentence in str(refusal.value) and '\n' not in str(refusal.value)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(base='rop'), "base='rop' is not an arm; known: rope, alibi; did you mean 'rope'?"),
    (dict(seeds=0), 'seeds=0 must be at least 1'),
    (dict(seeds=2_000_000_000), 'seeds=2000000000 must be at least 1 and at most 10,000'),
    (dict(config=3), 'config=3 must be of type dict'),
    (dict(arms=3), 'arms=3 must be of type dict'),
    (dict(against=3), 'against=3 must be of type dict'),
    (dict(arms={'rope': {}, 3: {}}), 'the name 3 of an arm must be of type str'),
    (dict(arms={'rope': {}, 'b': None}), "arms['b']=None must be of type dict"),
    (dict(arms={'rope': {}, 'b': 3}), "arms['b']=3 must be of type dict"),
    (dict(arms={'rope': {}, 'b': {3: 4}}), "arms['b'] changes 3; use the path of a config field"),
    (
      dict(arms={'rope': {}, 'b': {'seed': 1}}),
      "the arm 'b' sets seed=1, and every arm trains with each seed",
    ),
    (dict(arms={'rope': {}, '.': {}}), "the arm '.' has no folder of its own in arms/"),
    (dict(arms={'rope': {}, '/..': {}}), "the arm '/..' has no folder of its own in arms/"),
    (dict(higher_is_better=True), "metric='loss' is better if lower; remove higher_is_better"),
    (dict(higher_is_better=True, metric='test_bits_per_byte'), 'is better if lower'),
    (dict(higher_is_better=True, metric='loss/law'), 'is better if lower'),
    (dict(match='params'), "match='params' is unknown; known: parameters, flops, tokens, time"),
    (
      dict(match='time'),
      "match='time' depends on the number of steps, not on matched_field='model.feed_forward_width'",
    ),
    (
      dict(match='parameters', matched_field='training.steps'),
      "match='parameters' does not depend on matched_field='training.steps'",
    ),
    (
      dict(match='flops', arms={'rope': {'model.width': 64}}, matched_field='model.width'),
      "the arm 'rope' sets model.width, which match='flops' changes as matched_field",
    ),
    (dict(arms={'a,b': {}}, base='a,b'), 'contains a comma'),
    (dict(arms={'a!': {}, 'a?': {}}, base='a!'), "the arms 'a!' and 'a?' have the same folder 'a'"),
    (
      dict(arms={'rope': {}, 'slow': {'optimizer.learning_rate': 1e-5}}, learning_rates=(1e-3,)),
      "the arm 'slow' sets optimizer.learning_rate",
    ),
    (dict(learning_rates=(1e-3, 0.001)), 'has a duplicate'),
    (
      dict(learning_rates=(1e-3,), rates_beyond=1),
      'rates_beyond=1 continue the learning_rates=(0.001,); use',
    ),
    (dict(learning_rates=1e-3), 'learning_rates=0.001 must be of type tuple'),
    (dict(learning_rates=(-1.0, 1.0)), 'learning_rates=(-1.0, 1.0) has an entry that must be above 0'),
    (dict(learning_rates=('a',)), "learning_rates=('a',) has an entry that must be of type float"),
    (
      dict(learning_rates=(1e-3, 2e-3, 4e-3), rungs=(0.5,)),
      'rungs=(0.5,) keep three rates, and there are 3 learning_rates; use at least four',
    ),
    (dict(learning_rates=(1e-3, 2e-3, 4e-3, 8e-3), rungs=(0.5, 0.25)), 'rungs=(0.5, 0.25) must ascend'),
    (
      dict(learning_rates=(1e-3, 2e-3, 4e-3, 8e-3), rungs=(2.0,)),
      'has an entry that must be above 0 and below',
    ),
    (dict(equal_within=0.0), 'equal_within=0.0 must be above 0'),
    (dict(equal_within=0.1, solved_at=0.9), 'solved_at=0.9 compares shares of seeds; remove one of them'),
    (dict(measures='lengths'), "measures='lengths' must be of type tuple"),
    (dict(seeds='3'), "seeds='3' must be of type int"),
    (dict(metric=3), 'metric=3 must be of type str'),
    (dict(match=['parameters']), "match=['parameters'] must be of type str | None"),
    (dict(match='flops', multiple=0), 'multiple=0 must be at least 1'),
    (dict(match='flops', matched_field=3), 'matched_field=3 must be of type str | None'),
    (
      dict(matched_field='model.feed_forward_widht'),
      "matched_field='model.feed_forward_widht' has no effect without match=; use parameters or flops",
    ),
    (dict(against={'alibi': 3}), 'against: 3 is not an arm'),
    (dict(against={'alibi': 'rop'}), "against: 'rop' is not an arm"),
    (dict(published={'rop': (2.5, 'a paper')}), "published: 'rop' is not an arm"),
    (dict(published={'rope': 2.5}), "published['rope']=2.5 must be a number and its source"),
    (dict(published={'rope': (2.5, '')}), "published['rope']=(2.5, '') must be a number and its source"),
    (dict(published=3), 'published=3 must be of type dict'),
    (
      dict(against={'rope': 'alibi', 'alibi': 'rope'}),
      "against['rope']='alibi' is itself compared with 'rope'",
    ),
  ],
)
def test_invalid_input_is_rejected(fields, sentence):
  with pytest.raises(ValueError) as refusal:
    study(**fields)
  assert sentence in str(refusal.value) and '\n' not in str(refusal.value)


def test_metrics_of_tasks_may_be_better_if_higher():
  for metric in ('accuracy', 'prefix_matching', 'valid_symbols'):
    assert study(metric=metric, higher_is_better=True).higher_is_better


def test_arms_are_selected_by_name():
  assert select_arms(ARMS, None) == ARMS and [*select_arms(ARMS, ['alibi'])] == ['alibi']
  for names, sentence in (('', '--arms= names no arm; remove the flag'), (['alibi', ''], "has no arm ''")):
    with pytest.raises(ValueError, match=sentence):
      select_arms(ARMS, names)


def test_the_cost_of_selecting_rates():
  """In trainings of full length: five rates for a quarter, three of them for a half, and three in full."""
  rates = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
  assert study().selection_runs == 0 and study(learning_rates=rates).selection_runs == 5
  assert study(learning_rates=rates, rungs=(0.25, 0.5)).selection_runs == 5 / 4 + 3 / 2 + 3


def test_missing_files_are_rejected(tmp_path):
  with pytest.raises(ValueError, match='nowhere.py is no file'):
    load_study('nowhere.py')
  (tmp_path / 'empty.py').write_text('')
  with pytest.raises(ValueError, match=r'defines no get_study\(arg\)'):
    load_study(str(tmp_path / 'empty.py'))
