"""The arms of a study: matched within 2 %, or rejected with the numbers."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from tests.paths import ROOT
from tfm.analysis import estimate
from tfm.analysis.validation_metrics import list_validation_metrics
from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.load import to_json
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.models import flops
from tfm.studies import arms as study_arms
from tfm.studies import runner
from tfm.studies.study import Study, compare_within, load_study, product, select_arms
from tfm.training.step import train_step


BASE = dict(
  data=dict(source='stdlib', tokenizer='bytes', length=32),
  model=dict(layers=2, width=64, heads=4),
  training=dict(steps=50, batch_size=8),
)


def study(arms, **fields):
  result = dict(question='Which?', config=ConfigDict(BASE), arms={'base': {}} | arms, base='base')
  return Study(**result | fields)


@pytest.mark.slow
def test_an_unmatched_arm_differs_only_in_its_changes():
  arms = study_arms.plan_arms(study({'alibi': {'model.position': 'alibi'}}))
  assert list(arms) == ['base', 'alibi']
  different = list_differences(arms['base'].config.to_dict(), arms['alibi'].config.to_dict())
  assert len(different) == 1 and 'alibi' in different[0] and not arms['alibi'].matched


@pytest.mark.slow
def test_frozen_parameters_are_not_counted():
  arms = study_arms.plan_arms(study({'frozen': {'optimizer.frozen': 'embedding|stack'}}))
  whole, frozen = (
    nn.unbox(
      estimate.abstract_state(arms[name].experiment, study_arms.build_model(arms[name].experiment)).params
    )
    for name in ('base', 'frozen')
  )
  learnt = {name: part for name, part in frozen.items() if name not in ('embedding', 'stack')}
  assert arms['base'].parameters == sum(x.size for x in jax.tree.leaves(whole))
  assert arms['frozen'].parameters == sum(x.size for x in jax.tree.leaves(learnt)) > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize('match', ['parameters', 'flops'])
def test_matching_solves_for_a_width(match):
  arms = study_arms.plan_arms(
    study(
      {'narrow heads': {'model.kv_heads': 1}, 'gated': {'model.feed_forward': 'swiglu'}},
      match=match,
      multiple=1,
    )
  )
  quantity = {'parameters': lambda arm: arm.parameters, 'flops': lambda arm: arm.flops}[match]
  for arm in arms.values():
    assert abs(quantity(arm) / quantity(arms['base']) - 1) < 0.02
  narrow = arms['narrow heads']
  ((before, after),) = narrow.matched.values()
  assert after > before and narrow.config.model.feed_forward_width == after
  assert (
    before
    == study_arms.apply_changes(complete(BASE), {'model.kv_heads': 1}, 3).config.model.feed_forward_width
  )


@pytest.mark.slow
def test_with_scales_an_arm_is_matched_to_the_one_of_its_scale():
  sizes = {str(width): {'model.width': width} for width in (32, 48, 64)}
  named = product({'plain': {}, 'gated': {'model.feed_forward': 'swiglu'}}, sizes)
  planned = study_arms.plan_arms(
    Study(
      question='Which?',
      config=ConfigDict(BASE),
      arms=named,
      base='plain + 32',
      against=compare_within(named, 'plain'),
      scales=tuple(sizes),
      match='parameters',
    )
  )
  counts = {name: arm.parameters for name, arm in planned.items()}
  assert [*planned] == [*named] and counts['plain + 32'] < counts['plain + 48'] < counts['plain + 64']
  for width in sizes:
    assert not planned[f'plain + {width}'].matched
    assert abs(counts[f'gated + {width}'] / counts[f'plain + {width}'] - 1) < 0.02


@pytest.mark.slow
def test_matching_solves_for_steps():
  arms = study_arms.plan_arms(
    study({'deep': {'model.layers': 4}}, match='flops', matched_field='training.steps')
  )
  base, deep = arms['base'], arms['deep']
  assert (
    deep.config.training.steps < 50 and abs(deep.flops * deep.tokens / (base.flops * base.tokens) - 1) < 0.02
  )
  arms = study_arms.plan_arms(
    study({'long': {'data.length': 64}}, match='tokens', matched_field='training.steps')
  )
  assert arms['long'].matched == {'training.steps': (50, 25)} and arms['long'].tokens == arms['base'].tokens
  measured = []
  arms = study_arms.plan_arms(
    study({'long': {'data.length': 64}}, match='time', matched_field='training.steps'),
    step_timer=lambda found: measured.append(found) or dict(base=1.0, long=5.0),
  )
  assert arms['long'].matched == {'training.steps': (50, 10)} and [list(found) for found in measured] == [
    ['base', 'long']
  ]


def test_the_plan_shows_the_total_time(capsys):
  tiny_study = study({'alibi': {'model.position': 'alibi'}}, literature='Press et al.: alibi.')
  Console(width=200).print(
    study_arms.format_plan(tiny_study, study_arms.plan_arms(tiny_study), dict(base=3600.0, alibi=60.0))
  )
  printed = capsys.readouterr().out
  assert 'Which?' in printed and 'Literature: Press et al.: alibi.' in printed
  assert 'time, by FLOPs' in printed and '0:01:00' in printed and 'total 1:01:00' in printed


@pytest.mark.slow
def test_an_unmatchable_arm_is_rejected_with_numbers():
  with pytest.raises(ValueError) as refusal:
    study_arms.plan_arms(study({'wide': {'model.width': 256}}, match='parameters'))
  sentence = str(refusal.value)
  assert sentence.startswith(
    "the arm 'wide': match='parameters' cannot be reached by matched_field='model.feed_forward_width': 8 "
    'gives '
  )
  assert sentence.endswith('within 2%') and '\n' not in sentence


def test_only_selected_arms_are_planned():
  tiny_study = study(
    {
      'typo': {'model.positon': 'rope'},
      'far': {'model.layers': 1},
      'far alibi': {'model.layers': 1, 'model.position': 'alibi'},
    },
    against={'far': 'far', 'far alibi': 'far'},
  )
  assert list(study_arms.plan_arms(tiny_study, ['far alibi'])) == ['base', 'far', 'far alibi']


@pytest.mark.parametrize(
  'changes, sentence',
  [
    ({'data.source': 'digits'}, "data.source='digits' evaluates other texts than 'stdlib'"),
    ({'training.evaluation_batches': 2}, 'training.evaluation_batches=2 evaluates other texts than 4'),
    (
      {'data.length': 16},
      'data.length=16 gives other rows than 32 .* training.evaluation_batches=4 evaluates other texts; use 0',
    ),
    ({'training.batch_size': 16}, 'training.batch_size=16 gives other rows'),
    ({'data.tokenizer': 'char'}, "data.tokenizer='char' gives other rows"),
  ],
)
def test_a_different_evaluation_is_rejected(changes, sentence):
  base = complete(BASE | dict(training=BASE['training'] | dict(evaluation_batches=4)))
  other = base.copy_and_resolve_references()
  for path, value in changes.items():
    assign(other, path, value)
  study_arms.check_same_evaluation('loss', Experiment(base), Experiment(base))
  with pytest.raises(ValueError, match=sentence):
    study_arms.check_same_evaluation('loss', Experiment(other), Experiment(base))


def test_a_whole_split_allows_other_rows_and_tokens():
  base = complete(BASE)
  changes = {'data.length': 16, 'training.batch_size': 16, 'data.tokenizer': 'char'}
  other = base.copy_and_resolve_references()
  for path, value in changes.items():
    assign(other, path, value)
  study_arms.check_same_evaluation('bits_per_byte', Experiment(other), Experiment(base))
  for metric in ('loss', 'test_loss'):
    with pytest.raises(
      ValueError,
      match=f"gives other tokens than 'bytes' .* metric='{metric}' is per token; use metric='bits_per_byte'",
    ):
      study_arms.check_same_evaluation(metric, Experiment(other), Experiment(base))
  other.data.packing = 'padded'
  with pytest.raises(ValueError, match="data.length=16 with data.packing='padded' may truncate or drop"):
    study_arms.check_same_evaluation('bits_per_byte', Experiment(other), Experiment(base))


def test_arms_of_other_data_are_compared_among_themselves(book):
  other = {'data.source': f'text({str(book)!r})'}
  with pytest.raises(ValueError, match="the arm 'other': data.source="):
    study_arms.plan_arms(study({'other': other}), ['other'])
  assert list(study_arms.plan_arms(study({'other': other}, against={'other': 'other'}), ['other'])) == [
    'base',
    'other',
  ]


def test_weights_of_a_mixture_are_compared_by_the_loss_of_one_source():
  def experiment(weights, **fields):
    sources = dict(web="text('a.txt')", code='stdlib')
    data = BASE['data'] | dict(source=f'mix({weights})', sources=sources) | fields
    return Experiment(complete(BASE | dict(data=data)))

  base, other = experiment('web=0.5, code=0.5'), experiment('web=0.2, code=0.8')
  study_arms.check_same_evaluation('loss/code', other, base)
  with pytest.raises(ValueError, match=r"data.source='mix\(web=0.2, code=0.8\)' evaluates other texts than"):
    study_arms.check_same_evaluation('loss', other, base)
  changed = experiment('web=0.5, code=0.5', sources=dict(web="text('b.txt')", code='stdlib'))
  study_arms.check_same_evaluation('loss/code', changed, base)
  for metric in ('loss', 'bits_per_byte', 'loss/web'):
    with pytest.raises(ValueError, match='data.sources.web=.*b.txt.* evaluates other texts than .*a.txt'):
      study_arms.check_same_evaluation(metric, changed, base)
  with pytest.raises(ValueError, match="metric='loss/code' is per token"):
    study_arms.check_same_evaluation('loss/code', experiment('web=0.5, code=0.5', tokenizer='char'), base)
  trained = [experiment(weights, tokenizer='char') for weights in ('web=0.5, code=0.5', 'web=0.2, code=0.8')]
  study_arms.check_same_evaluation('loss/code', trained[0], trained[0])
  with pytest.raises(ValueError, match="data.tokenizer='char' is trained on other texts"):
    study_arms.check_same_evaluation('loss/code', *trained)


def test_the_metrics_of_a_mixture_are_known():
  data = BASE['data'] | dict(source='mix(web=0.5, code=0.5)', sources=dict(web='stdlib', code='stdlib'))
  experiment = Experiment(resolve_config(complete(BASE | dict(data=data))))
  metrics = list_validation_metrics(experiment, study_arms.build_model(experiment))
  assert {'loss', 'loss/web', 'loss/code'} < set(metrics)


def test_errors_name_the_arm():
  with pytest.raises(ValueError, match="the arm 'typo': .*model.positon"):
    study_arms.plan_arms(study({'typo': {'model.positon': 'rope'}}))
  with pytest.raises(ValueError, match="--arms: the study has no arm 'alib'; known: base"):
    select_arms(study_arms.plan_arms(study({})), ['alib'])


STUDIES = [pytest.param(str(path), id=path.stem) for path in sorted((ROOT / 'experiments').glob('*.py'))]
# They begin with a trained run, which their command makes.
FROM_RUNS = 'distillation', 'finetuning'
# As its paper has them, or to be seen in two minutes.
UNTUNED, UNMEASURED = ('vaswani_table3:full',), ('vaswani_table3:full', 'position:demo')


def shipped_studies(file):
  """Name with argument → study, of a file that needs no trained run."""
  with pytest.raises(ValueError) as unknown:
    load_study(f'{file}:?')
  arguments = ('', *(f':{name}' for name in unknown.value.__cause__.names))
  return {f'{pathlib.Path(file).stem}{argument}': load_study(f'{file}{argument}') for argument in arguments}


@pytest.mark.parametrize('file', [file for file in STUDIES if file.id not in FROM_RUNS])
def test_shipped_studies_have_tuned_rates_seeds_literature_and_a_look_at_the_start(file):
  for name, found in shipped_studies(file).items():
    assert found.literature, name
    assert found.seeds >= 3, name
    assert len(found.learning_rates) >= 3 or name in UNTUNED, name
    assert 'initialization' in found.measures or name in UNMEASURED, name


@pytest.mark.slow
@pytest.mark.parametrize('file', [file for file in STUDIES if file.id not in FROM_RUNS])
def test_shipped_studies_can_be_planned(file):
  for found in shipped_studies(file).values():
    arms = study_arms.plan_arms(found)
    assert len(arms) == len(found.arms) > 1
    runner.check_measures(found, arms)


@pytest.mark.slow
def test_the_finetuning_study_accepts_a_run_and_a_table(tiny, tmp_path, monkeypatch):
  """Any encoder and any table of texts stand in for the published ones."""
  encoder = {
    'model.architecture': 'encoder',
    'objective': 'masked_lm',
    'model.mask': 'full',
    'model.position': 'learned(rows=64)',
  }
  (tmp_path / 'config.json').write_text(to_json(tiny(**encoder)))
  (tmp_path / 'tweets.tab').write_text(
    'Author\tContent\nd\ts\nclass\tmeta\n' + ''.join(f'{"ab"[i % 2]}\ttext {i}\n' for i in range(400))
  )
  experiments = ROOT / 'experiments'
  result = load_study(f'{experiments}/finetuning.py:{tmp_path},{tmp_path}/tweets.tab')
  arms = study_arms.plan_arms(result)
  runner.check_measures(result, arms)
  assert arms['frozen'].parameters < arms['LoRA'].parameters < arms['full'].parameters / 4
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match='runs/minilm/config.json does not exist; see the header of the file'):
    load_study(f'{experiments}/finetuning.py')


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'model.kv_heads': 1},
    {'model.mixer': 'latent(rank=32, rope_width=16)'},
    {'model.feed_forward': 'swiglu'},
    {'model.mixer': 'convolution', 'model.position': 'none'},
  ],
  ids=str,
)
def test_flops_agree_with_the_compiled_step(changes):
  """XLA counts what is no product, too: norms, softmax, activations and the optimizer are up to 8 % at this
  width.

  Unscanned, as XLA counts a loop's body once; and all pairs, as the dense kernel computes what the mask
  hides. Not with the exact GELU: XLA counts an error function, which the backward pass computes again, as
  dozens of operations.
  """
  size = dict(layers=2, width=128, heads=4, scan=False, feed_forward='gelu_tanh')
  config = complete(dict(data=dict(length=64), model=size, training=dict(batch_size=8)))
  for path, value in changes.items():
    assign(config, path, value)
  experiment = Experiment(resolve_config(config))
  model, objective = study_arms.build_model(experiment), experiment.objective
  state, ids = (
    nn.unbox(estimate.abstract_state(experiment, model)),
    jax.ShapeDtypeStruct((8, 64), jnp.int32),
  )
  step = jax.jit(train_step(model, objective, experiment.optimizer, experiment.learning_rate, 1))
  compiled = step.lower(state, dict(inputs=ids, targets=ids, segments=ids, positions=ids)).compile()
  counted = flops.per_token(model, 64)
  assert 1 < compiled.cost_analysis()['flops'] / (8 * 64) / (3 * counted.unmasked) < 1.08
  # The mask hides from 64 tokens 63 of 128 pairs, of which only attention has any.
  pairs = sum(x for kind, x in counted.kinds.items() if kind.endswith(flops.PAIRS))
  assert counted.unmasked - counted.forward == pytest.approx(pairs * 63 / 65)
