"""Encoders and translators over HTTP: embeddings, classes and translations, by OpenAI's client."""

import contextlib
import json
import random
import threading

import numpy as np
import openai
import pytest

from tests.running_app import running
from tests.serving.server import until
from tests.serving.test_app import in_thread, metric, send
from tfm.commands import cli
from tfm.hf import loaded_model
from tfm.mixers.protocol import Context
from tfm.runs.train import train
from tfm.serving.app import build_app
from tfm.serving.open_service import Options, open_service


# Of lengths in several shapes, more than are read at once, and one that is empty.
TEXTS = ['Now is better', '', 'é', *('never ' * (i % 5) + str(i) for i in range(40))]
STEPS = {'training.steps': 2, 'training.evaluate_every': 2}


@contextlib.contextmanager
def serving(run, **options):
  """A block in which a run is served: (service, client)."""
  service = open_service('tiny', run, Options(**dict(queue=8, timeout=60.0) | options))
  with running(build_app(service)) as address:
    with openai.OpenAI(base_url=f'{address}v1', api_key='none', max_retries=0) as client:
      yield service, client


@pytest.fixture(scope='module')
def encoder(tiny, tmp_path_factory):
  folder = tmp_path_factory.mktemp('encoder') / 'run'
  fields = {'model.architecture': 'encoder', 'objective': 'masked_lm', 'model.mask': 'full'}
  train(tiny(**fields, **STEPS, **{'model.position': 'learned'}), folder)
  return loaded_model.load(str(folder))


@pytest.fixture(scope='module')
def classifier(tiny, tmp_path_factory):
  folder = tmp_path_factory.mktemp('classifier')
  (folder / 'a.tsv').write_text(
    ''.join(f'{"abc"[i % 3]}\t{"xyz"[i % 3] * (i % 7)} {i}\n' for i in range(400))
  )
  fields = {'model.architecture': 'encoder', 'objective': 'classification(3)', 'model.mask': 'full'}
  source = {'data.source': f'labelled({str(folder / "a.tsv")!r})', 'data.packing': 'each'}
  train(tiny(**fields, **source, **STEPS), folder / 'run')
  return loaded_model.load(str(folder / 'run'))


@pytest.fixture(scope='module')
def translator(tiny, tmp_path_factory):
  folder, draw = tmp_path_factory.mktemp('translator'), random.Random(0)
  numbers = [''.join(draw.choices('0123456789', k=draw.randrange(1, 6))) for _ in range(600)]
  (folder / 'a').write_text(''.join(f'{n}\n' for n in numbers))
  (folder / 'b').write_text(''.join(f'{n[::-1]}\n' for n in numbers))
  fields = {'model.architecture': 'encoder_decoder', 'objective': 'seq2seq', 'model.encoder.layers': 1}
  source = {'data.source': f"parallel('{folder}/a', '{folder}/b')", 'data.packing': 'first_fit'}
  train(tiny(**fields, **source, **STEPS), folder / 'run')
  return loaded_model.load(str(folder / 'run')), folder / 'run'


@pytest.mark.slow
def test_an_embedding_is_the_mean_of_the_last_states(encoder):
  """Of each text alone, without padding."""
  with serving(encoder) as (_, client):
    whole = client.embeddings.create(model='tiny', input=TEXTS)
    as_numbers = client.embeddings.create(model='tiny', input='é', encoding_format='float')
  assert [entry.index for entry in whole.data] == [*range(len(TEXTS))]
  for i in (0, 1, 2, 3, 7, 41):
    tokens = encoder.encode(TEXTS[i])[None]
    states = encoder.model.apply(
      {'params': encoder.params}, tokens, Context.contiguous(tokens), method='features'
    )
    mean = np.asarray(states, np.float64)[0].mean(0)
    np.testing.assert_allclose(whole.data[i].embedding, mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(as_numbers.data[0].embedding, whole.data[2].embedding, atol=1e-6)
  assert whole.usage.prompt_tokens == sum(len(encoder.encode(text)) for text in TEXTS)


@pytest.mark.slow
def test_classes_have_their_probabilities(classifier):
  with serving(classifier) as (_, client):
    body = json.dumps(dict(model='tiny', input=TEXTS)).encode()
    status, text, _ = send(str(client.base_url.join('/classify')), body)
    assert client.embeddings.create(model='tiny', input='a').data
  data = json.loads(text)['data']
  assert status == 200 and [entry['index'] for entry in data] == [*range(len(TEXTS))]
  for i in (0, 1, 2, 41):
    logits = classifier.logits(TEXTS[i])[0].astype(np.float64)
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(data[i]['probs'], expected, rtol=1e-4)
    assert data[i]['label'] == expected.argmax() and data[i]['num_classes'] == 3


@pytest.mark.slow
def test_translations_are_those_of_generate(translator, tmp_path):
  run, folder = translator
  sources = ['123', '', '98765', '4']
  (tmp_path / 'in.txt').write_text(''.join(f'{source}\n' for source in sources))
  out = tmp_path / 'out.jsonl'
  words = [f'--workdir={folder}', f'--input={tmp_path}/in.txt', f'--to={out}', '--max_tokens=6']
  assert cli.main(['generate', *words]) == 0
  expected = [json.loads(line)['text'] for line in out.read_text('utf-8').splitlines()]
  with serving(run) as (_, client):
    together = client.completions.create(model='tiny', prompt=sources, max_tokens=6)
    assert [choice.text for choice in together.choices] == expected
    alone = client.completions.create(model='tiny', prompt=sources[2], max_tokens=6)
    assert alone.choices[0].text == expected[2] and alone.usage.prompt_tokens == 6


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, path, fields, sentence',
  [
    ('encoder', 'v1/embeddings', dict(input='a' * 31), 'a text of 33 tokens exceeds the 32 positions'),
    ('encoder', 'v1/embeddings', dict(input=[]), 'input=[]: list should have at least 1 item'),
    ('encoder', 'v1/embeddings', dict(input='\ud800'), 'the text has a lone surrogate; send UTF-8'),
    ('encoder', 'v1/embeddings', dict(input='a', dimensions=4), 'dimensions is not served; remove it'),
    ('encoder', 'classify', dict(input='a'), 'POST /classify: Not Found'),
    ('encoder', 'v1/completions', dict(prompt='a'), 'POST /v1/completions: Not Found'),
    ('translator', 'v1/completions', dict(prompt='a', stream=True), 'stream is not served; remove it'),
    ('translator', 'v1/completions', dict(prompt='a', temperature=1), 'temperature is not served; remove it'),
    ('translator', 'v1/completions', dict(prompt='a', max_tokens=0), 'max_tokens=0: input should be greater'),
  ],
)  # fmt: skip
def test_what_is_not_served_is_refused_in_a_sentence(request, kind, path, fields, sentence):
  run = request.getfixturevalue(kind)
  with serving(run[0] if kind == 'translator' else run) as (_, client):
    body = json.dumps(dict(model='tiny') | fields).encode()
    status, text, _ = send(str(client.base_url.join(f'/{path}')), body)
  assert status == (404 if 'Not Found' in sentence else 400)
  assert sentence in json.loads(text)['error']['message']


def test_flags_of_decoders_are_refused(encoder):
  with pytest.raises(
    ValueError, match="--rows=4 is for decoders, and this is a model of architecture='encoder'"
  ):
    open_service('tiny', encoder, Options(queue=8, timeout=1.0, rows=4))


@pytest.mark.slow
def test_the_queue_and_the_time_are_bounded(encoder, monkeypatch):
  gate = threading.Event()
  monkeypatch.setattr('tfm.serving.encodings.encode_batches', lambda run, rows, function: gate.wait() and [])
  with serving(encoder, queue=1, timeout=2.0) as (service, client):
    ask = lambda: client.embeddings.create(model='tiny', input='a')  # noqa: E731
    threads = [in_thread(ask)]
    until(lambda: service.active)
    threads.append(in_thread(ask))
    until(lambda: service.waiting)
    with pytest.raises(openai.RateLimitError, match='1 requests wait and the queue has room for 1'):
      ask()
    for thread in threads:
      thread.join()
    # The second one, which waited, is not computed.
    assert (service.waiting, service.active) == (0, 1)
    assert metric(client, 'tfm_requests_total{outcome="timeout"}') == 2
    gate.set()
    until(lambda: service.active == 0)
