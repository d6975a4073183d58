"""The client of OpenAI, unchanged, against a server on this machine: texts are those of `tfm generate`."""

import concurrent.futures
import json

import openai
import pytest

from tfm.commands import cli


MODEL = 'tiny'
PROMPTS = ['Now is ', '', 'Although never is often better', 'é', 'Sparse']


@pytest.fixture(scope='module')
def client(address):
  with openai.OpenAI(base_url=f'{address}v1', api_key='none', max_retries=0) as client:
    yield client


def generate(run_dir, capsys, prompts, *flags):
  """The texts of `tfm generate`, without their prompts, by (prompt, sample)."""
  file = run_dir.parent / 'prompts.txt'
  file.write_text(''.join(f'{prompt}\n' for prompt in prompts), encoding='utf-8')
  out = run_dir.parent / 'texts.jsonl'
  assert cli.main(['generate', f'--workdir={run_dir}', f'--input={file}', f'--to={out}', *flags]) == 0
  rows = map(json.loads, out.read_text('utf-8').splitlines())
  return {(row['prompt'], row['sample']): row['text'].removeprefix(row['prompt']) for row in rows}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'flags, fields',
  [
    (['--temperature=0'], dict(temperature=0)),
    (['--temperature=0.9', '--top_p=0.9', '--seed=7'], dict(temperature=0.9, top_p=0.9, seed=7)),
    (
      ['--top_k=20', '--min_p=0.01', '--repetition_penalty=1.2', '--seed=5', '--num_samples=2'],
      dict(seed=5, n=2, extra_body=dict(top_k=20, min_p=0.01, repetition_penalty=1.2)),
    ),
  ],
  ids=['greedy', 'sampled', 'two samples'],
)
def test_texts_are_those_of_generate(client, run_dir, capsys, flags, fields):
  """Whole, streamed, all prompts at once, and side by side."""
  expected = generate(run_dir, capsys, PROMPTS, '--max_tokens=30', *flags)
  fields = dict(model=MODEL, max_tokens=30) | fields
  samples = fields.get('n', 1)
  together = client.completions.create(prompt=PROMPTS, **fields).choices
  assert [choice.index for choice in together] == [*range(len(PROMPTS) * samples)]
  texts = {(PROMPTS[choice.index // samples], choice.index % samples): choice.text for choice in together}
  assert texts == expected

  def stream(prompt):
    parts = [''] * samples
    for event in client.completions.create(prompt=prompt, stream=True, **fields):
      for choice in event.choices:
        parts[choice.index] += choice.text
    return parts

  with concurrent.futures.ThreadPoolExecutor() as pool:
    streamed = dict(zip(PROMPTS, pool.map(stream, PROMPTS)))
  assert {(prompt, i): text for prompt, parts in streamed.items() for i, text in enumerate(parts)} == expected


def test_tokens_are_counted_and_a_text_has_its_reason(client):
  response = client.completions.create(model=MODEL, prompt='Now', max_tokens=5, temperature=0)
  usage = response.usage
  assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 5, 9)
  assert response.choices[0].finish_reason == 'length' and response.object == 'text_completion'
  *events, last = client.completions.create(
    model=MODEL,
    prompt='Now',
    max_tokens=5,
    temperature=0,
    stream=True,
    stream_options=dict(include_usage=True),
  )
  assert last.usage == usage and not last.choices
  assert ''.join(event.choices[0].text for event in events) == response.choices[0].text
  assert [event.choices[0].finish_reason for event in events][-1] == 'length'


def test_tokens_are_a_prompt(client, served):
  tokens = served.model.encode('Now').tolist()
  texts = [
    client.completions.create(model=MODEL, prompt=prompt, max_tokens=9, temperature=0).choices[0].text
    for prompt in ('Now', tokens, [tokens])
  ]
  assert texts[0] == texts[1] == texts[2]


def test_without_a_seed_texts_differ(client):
  texts = {client.completions.create(model=MODEL, prompt='', max_tokens=12).choices[0].text for _ in range(4)}
  assert len(texts) > 1


def test_a_text_ends_before_a_stop_sequence(client):
  fields = dict(model=MODEL, prompt='Now', max_tokens=40, seed=1)
  text = client.completions.create(**fields).choices[0].text
  stop = text[11:14]
  for stops in (stop, ['not there', stop]):
    cut = client.completions.create(stop=stops, **fields)
    assert cut.choices[0].text == text[: text.index(stop)] and cut.choices[0].finish_reason == 'stop'
    streamed = client.completions.create(stop=stops, stream=True, **fields)
    assert ''.join(event.choices[0].text for event in streamed) == cut.choices[0].text


def test_a_conversation_is_continued_by_its_template(client):
  messages = [
    dict(role='system', content='Be brief.'),
    dict(role='user', content=[dict(type='text', text='What is '), dict(type='text', text='now?')]),
  ]
  fields = dict(model=MODEL, temperature=0)
  prompt = 'system: Be brief.\nuser: What is now?\nassistant:'
  text = client.completions.create(prompt=prompt, max_tokens=12, **fields).choices[0].text
  for name in ('max_tokens', 'max_completion_tokens'):
    response = client.chat.completions.create(messages=messages, **{name: 12}, **fields)
    assert response.choices[0].message.content == text and response.choices[0].message.role == 'assistant'
  first, *events = client.chat.completions.create(messages=messages, max_tokens=12, stream=True, **fields)
  assert first.choices[0].delta.role == 'assistant'
  assert ''.join(event.choices[0].delta.content for event in events) == text
  with pytest.raises(openai.BadRequestError, match='the chat template refuses the messages: no tools'):
    client.chat.completions.create(model=MODEL, messages=[dict(role='tool', content='3')])


def test_models_are_listed(client):
  assert [model.id for model in client.models.list()] == [MODEL]
  assert client.models.retrieve(MODEL).owned_by == 'tfm'
  with pytest.raises(openai.NotFoundError, match="model='gpt-9' is not served; use 'tiny'"):
    client.models.retrieve('gpt-9')


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(prompt='a' * 64), r'needs 65 positions and the server has 64 for a text; shorten the prompt'),
    (dict(prompt='a', max_tokens=64), 'use at most max_tokens=63'),
    (dict(prompt=[[]]), r'prompts\[0\] is empty'),
    (dict(prompt=[]), 'prompt is empty; send at least one'),
    (dict(prompt=[[257]]), r'prompts\[0\] has a token outside the vocabulary of 257'),
    (dict(prompt='a', n=65), '65 texts in one request exceed the queue of 64; ask for fewer'),
    (dict(prompt='a', logprobs=2), 'logprobs is not served; remove it'),
    (dict(prompt='a', frequency_penalty=0.5), 'frequency_penalty is not served; remove it'),
    (dict(prompt='a', temperature=-1), 'temperature=-1: input should be greater than or equal to 0'),
    (dict(prompt='a', extra_body=dict(beams=4)), 'beams is not served; remove it'),
  ],
)
def test_what_is_not_served_is_refused_in_a_sentence(client, fields, sentence):
  with pytest.raises(openai.BadRequestError, match=sentence):
    client.completions.create(model=MODEL, **fields)


def test_fields_that_ask_for_nothing_are_accepted(client):
  nothing = dict(
    best_of=1, echo=False, frequency_penalty=0.0, presence_penalty=0, suffix='', logit_bias={}, user='me'
  )
  assert client.completions.create(model=MODEL, prompt='a', max_tokens=2, **nothing).choices
