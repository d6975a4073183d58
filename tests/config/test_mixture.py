"""config.data.sources and mix(…): what is accepted, and one sentence for what is not."""

import json

import pytest

from tests.config.configs import assert_rejected, complete, override
from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.load import to_json
from tfm.config.overlay import complete as complete_config
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run


WEB, CODE = "text('web/*.txt')", 'stdlib'
SOURCES = f'--config.data.sources.web={WEB}', f'--config.data.sources.code={CODE}'


def build(*words):
  experiment = Experiment(override(*words))
  validate_run(experiment, 1)
  return experiment


def mix(text, *words):
  return build(*SOURCES, f'--config.data.source={text}', *words)


def test_a_mixture_from_the_command_line_and_from_a_file_are_the_same():
  experiment = mix('mix(web=0.7, code=0.3)')
  config = complete(data=dict(source='mix(web=0.7, code=0.3)', sources=dict(web=WEB, code=CODE)))
  assert experiment.config.to_dict() == resolve_config(config).to_dict()
  assert experiment.source == Experiment(config).source
  assert {name: source.spec for name, source in experiment.source.parts.items()} == dict(web=WEB, code=CODE)
  assert [float(weight) for _, weight in experiment.source.weights] == [0.3, 0.7]
  assert experiment.source.spec == 'mix(code=0.3, web=0.7)'
  # As a checkpoint stores it.
  stored = complete_config(json.loads(to_json(experiment.config)))
  assert not list_differences(stored.to_dict(), experiment.config.to_dict())


def test_sources_are_part_of_what_a_run_computes():
  one = mix('mix(web=0.7, code=0.3)').config
  other = mix('mix(web=0.7, code=0.3)', "--config.data.sources.web=text('other.txt')").config
  assert list_differences(one.to_dict(), other.to_dict()) == [
    f'data.sources.web: {WEB!r} → "text(\'other.txt\')"'
  ]


def test_a_source_can_be_left_out():
  assert list(mix('mix(web=1.0)', '--config.data.sources.code=').source.parts) == ['web']


@pytest.mark.parametrize(
  'text, parts',
  [
    (
      'mix(web=0.7, cod=0.3)',
      ["config.data.source='mix(web=0.7, cod=0.3)': 'cod' is not in config.data.sources", "mean 'code'?"],
    ),
    ('mix(web=1.5, code=-0.5)', 'web=1.5 must be above 0 and at most 1'),
    ('mix(web=1.0, code=-0.5)', 'code=-0.5 must be above 0 and at most 1'),
    ('mix(web=1.0, code=0)', 'code=0 must be above 0 and at most 1'),
    ('mix(web=0.7, code=0.2)', 'the weights add up to 0.9 and must add up to 1'),
    ('mix(web=0.7, code=0.300001)', 'the weights add up to 1.000001 and must add up to 1'),
    ('mix(web=0.7000001, code=0.3)', 'web=0.7000001 has more than 6 decimals; round it'),
    ('mix(web="x", code=0.3)', "web='x' must be of type float"),
    ('mix(web=True)', 'web=True must be of type float'),
    ('mix(0.7, 0.3)', 'passes 2 positional arguments; mix takes (**weights [> 0, ≤ 1])'),
    ('mix', 'the weights add up to 0.0 and must add up to 1, as in mix(web=0.7, code=0.3)'),
    (
      'mix(web=1.0)',
      "config.data.sources.code='stdlib' is not in config.data.source='mix(web=1.0)'; name it",
    ),
    ('stdlib', "config.data.sources.code='stdlib' is not in config.data.source='stdlib'"),
    ('mix(sources=1.0)', "passes 'sources'; mix takes"),
  ],
)
def test_mixtures_that_are_rejected(text, parts):
  assert_rejected(lambda: mix(text), *([parts] if isinstance(parts, str) else parts))


@pytest.mark.parametrize(
  'words, part',
  [
    (['--config.data.sources.code=txt("a")'], "config.data.sources.code='txt(\"a\")' names 'txt'"),
    (
      ['--config.data.sources.code=mix(web=1.0)'],
      "config.data.sources.code='mix(web=1.0)': it mixes sources",
    ),
    (
      ['--config.data.sources.code=parallel("a", "b")'],
      "code has fields ('source', 'target') and web ('text',)",
    ),
    (['--config.data.sources.code.x=stdlib'], 'it has no fields of its own'),
    (['--config.data.sources=stdlib'], "config.data.sources='stdlib' is a section; known: code, web"),
    (['--config.data.sources.cod=stdlib'], "config.data.sources.cod='stdlib' is not in"),
  ],
)
def test_sources_that_are_rejected(words, part):
  assert_rejected(lambda: mix('mix(web=0.5, code=0.5)', *words), part)


def test_packings_of_several_shapes_are_rejected():
  pairs = '--config.data.sources.web=parallel("a", "b")', '--config.data.source=mix(web=1.0)'
  seq2seq = '--config.objective=seq2seq', '--config.model.architecture=encoder_decoder'
  build(*pairs, *seq2seq, '--config.data.packing=first_fit')
  assert_rejected(
    lambda: build(*pairs, *seq2seq, '--config.data.packing=buckets'),
    "config.data.packing='buckets' makes batches of several shapes",
    "use 'first_fit' or 'padded'",
  )


def test_a_mixture_with_an_infinite_source_is_infinite():
  pairs = '--config.data.sources.web=parallel("a", "b")', '--config.data.sources.code=numbers("en", "de")'
  words = *pairs, '--config.objective=seq2seq', '--config.model.architecture=encoder_decoder'
  mixture = '--config.data.source=mix(web=0.5, code=0.5)'
  assert build(*words, mixture, '--config.data.packing=padded').source.is_infinite
  assert_rejected(lambda: build(*words, mixture, '--config.data.packing=first_fit'), 'is infinite')
