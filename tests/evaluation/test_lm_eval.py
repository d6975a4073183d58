"""A run in lm-evaluation-harness, offline: its numbers are those of tfm's own evaluation; `make lm-eval`."""

import dataclasses
import importlib.util
import json
import math

import numpy as np
import pytest

import tfm
from tfm.config.assemble import Experiment
from tfm.decoding import loop
from tfm.runs.train import train


INSTALLED = importlib.util.find_spec('lm_eval') is not None
if INSTALLED:
  import lm_eval
  from lm_eval.api.instance import Instance
  from lm_eval.tasks import TaskManager

  from tfm.evaluation.lm_eval import TfmLM

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not INSTALLED, reason='needs lm-evaluation-harness, which `make lm-eval` installs'),
]
LENGTH = 32
CLOSE = dict(rtol=1e-5, atol=1e-5)  # of sums of a few float32 log-probabilities


@pytest.fixture(scope='module')
def model(tmp_path_factory, tiny):
  workdir, steps = tmp_path_factory.mktemp('run'), 300
  train(
    tiny(
      **{'training.steps': steps, 'training.evaluate_every': steps, 'training.log_every': steps},
      **{'optimizer.learning_rate': 1e-2, 'optimizer.warmup': 20},
    ),
    workdir,
  )
  return tfm.load(workdir)


@pytest.fixture(scope='module')
def lm(model):
  return TfmLM(model, batch_size=3)


def ask(method, *arguments):
  """The results of requests with these arguments."""
  kind = method.__name__
  return method([Instance(kind, {}, each, i) for i, each in enumerate(arguments)], disable_tqdm=True)


def log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def expected(model, context, continuation):
  """(log p, whether it is greedy) from the logits of the whole text, one token at a time."""
  scores = log_softmax(model.logits(context + continuation)[0])
  first, tokens = len(model.tokenizer.encode(context)), model.tokenizer.encode(continuation)
  total, greedy = 0.0, True
  for i, token in enumerate(tokens, first):  # row i is after the token that begins the text and i more
    total += scores[i, token]
    greedy &= scores[i].argmax() == token
  return total, greedy


PAIRS = [
  ('Now is better', ' than never.'),
  ('', 'Sparse'),
  ('Verse 3', '.\nNow'),
  ('Spärse', ' ü'),
  ('a', 'bcdefgh'),
]


def test_log_likelihoods_are_those_of_the_logits(model, lm):
  results = ask(lm.loglikelihood, *PAIRS)
  for (context, continuation), (score, is_greedy) in zip(PAIRS, results, strict=True):
    total, greedy = expected(model, context, continuation)
    np.testing.assert_allclose(score, total, **CLOSE)
    assert is_greedy == greedy
  assert {is_greedy for _, is_greedy in results} == {True, False}


def test_a_score_depends_on_its_own_texts_only(lm):
  together = ask(lm.loglikelihood, *PAIRS)
  alone = [ask(lm.loglikelihood, pair)[0] for pair in PAIRS]
  np.testing.assert_allclose([score for score, _ in together], [score for score, _ in alone], **CLOSE)


def test_a_long_context_loses_its_beginning(model, lm):
  context, continuation = 'x' * 200 + 'Now is better than never. Although', ' never is'
  [(score, _)] = ask(lm.loglikelihood, (context, continuation))
  kept = (context + continuation)[-LENGTH - 1 :].encode()
  scores = log_softmax(model.logits(np.frombuffer(kept, np.uint8)[None, :-1].astype(np.int32))[0])
  np.testing.assert_allclose(
    score, sum(scores[i - 1, kept[i]] for i in range(LENGTH + 1 - len(continuation), LENGTH + 1)), **CLOSE
  )
  with pytest.raises(ValueError, match='has 33 tokens, more than max_length=32'):
    ask(lm.loglikelihood, ('a', 'b' * 33))


@pytest.mark.parametrize('rows', [1, 3])
def test_rolling_is_what_tfm_evaluates(model, lm, tmp_path, rows):
  """A text of whole rows: tfm evaluate also counts the end of the text, alone in a further row."""
  text = ('Now is better than never.\nAlthough never is often better than right now.' * 3)[: rows * LENGTH]
  for split in ('train', 'valid', 'test'):
    (tmp_path / f'{split}.txt').write_text(text)
  source = f'text("{tmp_path}/{{split}}.txt", splits=("train", "valid", "test"))'
  metrics = model.evaluate('test', source=source)
  assert metrics['tokens'] == len(text) + 1
  [score] = ask(lm.loglikelihood_rolling, (text,))
  ends = log_softmax(model.logits(np.array([[ord(text[-1])]], np.int32))[0, 0])[model.tokenizer.eos_id]
  np.testing.assert_allclose(score, -metrics['loss'] * metrics['tokens'] - ends, **CLOSE)


def test_rolling_over_several_texts(model, lm):
  texts = [('Now is better than never.',), ('Verse 3.\n' * 9,), ('',)]
  scores = ask(lm.loglikelihood_rolling, *texts)
  np.testing.assert_allclose(scores[0], expected(model, '', texts[0][0])[0], **CLOSE)
  assert scores[1] == pytest.approx(ask(lm.loglikelihood_rolling, texts[1])[0], rel=1e-5, abs=1e-5)
  assert scores[2] == 0


def test_generation_is_tfms_own_up_to_a_stop_string(model, lm):
  prompts = 'Now is', 'Sparse is', 'Verse 1'
  own = [model.generate(prompt, max_new_tokens=40)[len(prompt) :] for prompt in prompts]
  requests = [(prompt, dict(until=[], max_gen_toks=40, do_sample=False)) for prompt in prompts]
  assert ask(lm.generate_until, *requests) == own
  stops = [text[5:7] for text in own]
  requests = [
    (prompt, dict(until=[stop, 'nowhere'], max_gen_toks=40)) for prompt, stop in zip(prompts, stops)
  ]
  assert ask(lm.generate_until, *requests) == [text[: text.index(stop)] for text, stop in zip(own, stops)]


@pytest.fixture(scope='module')
def growing(model, tiny):
  """As a published model whose rotations change when a text grows beyond 16 tokens."""
  scaling = 'longrope(short_factor=(1,1,1,1), long_factor=(1,2,4,8), original=16, factor=2.0)'
  experiment = Experiment(tiny(**{'model.position': f'rope(scaling={scaling!r})'}))
  one = experiment.build_model(model.vocab)
  return dataclasses.replace(model, experiment=experiment, model=one, published=dict(family='llama'))


def test_each_text_has_the_rotations_of_its_own_length(model, growing):
  pairs = [*PAIRS, ('Now is better than', ' never'), ('Now is better than', ' ever.'), ('Although neve', 'r')]
  scores = ask(TfmLM(growing, batch_size=3).loglikelihood, *pairs)
  alone = [expected(growing, *pair)[0] for pair in pairs]
  np.testing.assert_allclose([score for score, _ in scores], alone, **CLOSE)
  assert not np.allclose(alone, [expected(model, *pair)[0] for pair in pairs], **CLOSE)


def test_generation_follows_the_length_of_each_text(growing):
  prompts = 'Now is', 'Sparse is better', 'Verse 1'
  own = [growing.generate(prompt, max_new_tokens=24)[len(prompt) :] for prompt in prompts]
  requests = [(prompt, dict(until=[], max_gen_toks=24, do_sample=False)) for prompt in prompts]
  assert ask(TfmLM(growing).generate_until, *requests) == own


def test_generation_ends_when_every_row_has_its_stop_string(model, lm, monkeypatch):
  read, generate = [], loop.generate
  monkeypatch.setattr(
    loop, 'generate', lambda *a, **k: (read.append(new) or new for new in generate(*a, **k))
  )
  [text] = ask(lm.generate_until, ('Now is', dict(until=[' '], max_gen_toks=200)))
  assert ' ' not in text and sum(len(new[0]) for new in read) < 200


def test_sampling_has_a_seed(model):
  request = 'Now', dict(until=[], max_gen_toks=20, do_sample=True, temperature=2.0, top_k=50)
  texts = [ask(TfmLM(model, seed=seed).generate_until, request)[0] for seed in (0, 0, 1)]
  assert texts[0] == texts[1] != texts[2]
  assert texts[0] == model.generate('Now', max_new_tokens=20, temperature=2.0, top_k=50, seed=0)[3:]
  first, second, third = ask(TfmLM(model).generate_until, request, request, request)  # the repeats of a task
  assert first == texts[0] and len({first, second, third}) == 3


@pytest.mark.parametrize(
  'settings, sentence',
  [
    (dict(until=[], num_beams=4), 'generation_kwargs.num_beams is not supported'),
    (dict(until=[], do_sample=True, temperature=1.0, top_p=2.0), 'top_p=2.0 must lie in'),
  ],
)
def test_settings_that_would_be_ignored_are_refused(lm, settings, sentence):
  with pytest.raises(ValueError, match=sentence):
    ask(lm.generate_until, ('Now', settings))


@pytest.mark.parametrize(
  'fields, arguments, sentence',
  [
    ({}, dict(max_length=0), 'max_length=0 must be at least 1'),
    ({}, dict(batch_size=0), 'batch_size=0 must be at least 1'),
    ({'model.position': 'learned'}, dict(max_length=33), 'max_length=33 exceeds the 32 positions of Learned'),
    (
      {'model.architecture': 'encoder', 'objective': 'masked_lm'},
      {},
      "'encoder' has no likelihood of a text",
    ),
  ],
)
def test_invalid_models_and_arguments_are_refused(model, tiny, fields, arguments, sentence):
  experiment = Experiment(tiny(**fields))
  other = dataclasses.replace(model, experiment=experiment, model=experiment.build_model(model.vocab))
  with pytest.raises(ValueError, match=sentence):
    TfmLM(other, **arguments)


TASKS = {
  'choices': """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: CHOICES}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
  'texts': """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: TEXTS}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: byte_perplexity}]
""",
  'answers': """
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: CHOICES}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
CHOICES = [
  dict(question='Now is better', choices=[' than never.', ' zqxjk vwq.'], answer=0),
  dict(question='Sparse is better', choices=[' QQQQQQQQQQQ', ' than dense.'], answer=1),
  dict(
    question='Although never is', choices=['!', ' often better'], answer=0
  ),  # which a good model gets wrong
]


TEXT = 'Now is better than never.\n' * 4


@pytest.fixture
def tasks(tmp_path, monkeypatch):
  """The tasks above as files, which no network is needed for."""
  monkeypatch.setenv('HF_DATASETS_OFFLINE', '1')
  monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path / 'cache')
  (tmp_path / 'choices.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in CHOICES))
  (tmp_path / 'texts.jsonl').write_text(json.dumps(dict(text=TEXT)) + '\n')
  (tmp_path / 'tasks').mkdir()
  for name, text in TASKS.items():
    for word in ('choices', 'texts'):
      text = text.replace(word.upper(), str(tmp_path / f'{word}.jsonl'))
    (tmp_path / 'tasks' / f'{name}.yaml').write_text(text)
  return TaskManager(include_path=str(tmp_path / 'tasks'), include_defaults=False)


def test_the_harness_runs_local_tasks(model, lm, tasks):
  results = lm_eval.simple_evaluate(lm, tasks=[*TASKS], task_manager=tasks, bootstrap_iters=0)['results']
  right, normed, exact = [], [], []
  for row in CHOICES:
    scores = np.array([expected(model, row['question'], choice)[0] for choice in row['choices']])
    right.append(scores.argmax() == row['answer'])
    normed.append((scores / [len(choice) for choice in row['choices']]).argmax() == row['answer'])
    text = model.generate(row['question'], max_new_tokens=24)[len(row['question']) :]
    exact.append(text.split('\n')[0] == row['choices'][row['answer']])
  assert results['choices']['acc,none'] == np.mean(right) == 2 / 3
  assert results['choices']['acc_norm,none'] == np.mean(normed)
  assert results['answers']['exact_match,none'] == np.mean(exact) == 2 / 3
  [score] = ask(lm.loglikelihood_rolling, (TEXT,))
  bits = -score / len(TEXT) / math.log(2)
  assert results['texts']['bits_per_byte,none'] == pytest.approx(bits, rel=1e-5)
