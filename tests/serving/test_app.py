"""What the server answers besides texts: errors, and how requests end that are not answered."""

import contextlib
import dataclasses
import json
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request

import openai
import pytest

from tests.running_app import running
from tests.serving.server import Gate, serve, until


MODEL = 'tiny'


def send(url, body=None, **headers):
  """(status, body, headers) of an answer."""
  request = urllib.request.Request(url, body, {'Content-Type': 'application/json'} | headers)
  try:
    with urllib.request.urlopen(request) as response:
      return response.status, response.read().decode(), response.headers
  except urllib.error.HTTPError as error:
    return error.code, error.read().decode(), error.headers


@pytest.mark.parametrize(
  'body, sentence',
  [
    (b'{', 'the body is no JSON: '),
    (b'\xff', 'There was an error parsing the body'),
    (b'[' * 100_000, 'There was an error parsing the body'),
    (b'', 'a body is missing; add it'),
    (b'[1]', 'the body=[1]: input should be a valid dictionary'),
    (b'{}', 'model is missing; add it'),
    (b'{"model": "tiny", "prompt": null}', 'prompt is missing; add it'),
    (b'{"model": "tiny", "prompt": "\\ud800"}', 'the text has a lone surrogate; send UTF-8'),
    (b'{"model": "tiny", "prompt": {"a": 1}}', "prompt={'a': 1}: input should be a valid"),
    (b'{"model": "tiny", "prompt": [["1"]]}', "prompt.0.0='1': input should be a valid integer"),
    (b'{"model": "tiny", "prompt": [-1]}', 'prompt.0=-1: input should be greater than or equal to 0'),
    (b'{"model": "tiny", "prompt": [%d]}' % 10**30, f'prompt.0={10**30}: input should be less than'),
    (b'{"model": "tiny", "prompt": "", "temperature": NaN}', 'temperature=nan: input should be a finite'),
    (b'{"model": "tiny", "prompt": "", "temperature": "1"}', "temperature='1': input should be a valid"),
    (b'{"model": "tiny", "prompt": "", "seed": 4294967296}', 'seed=4294967296: input should be less than'),
    (b'{"model": "tiny", "prompt": "", "max_tokens": 0}', 'max_tokens=0: input should be greater than or'),
    (b'{"model": "tiny", "prompt": "", "logprobs": 0}', 'logprobs is not served; remove it'),
    (b'{"model": "tiny", "prompt": "", "stop": [1]}', 'stop.0=1: input should be a valid string'),
  ],
)  # fmt: skip
def test_a_malformed_body_is_refused_in_a_sentence(address, body, sentence):
  status, text, _ = send(f'{address}v1/completions', body)
  error = json.loads(text)['error']
  assert status == 400 and sentence in error['message'] and error['type'] == 'invalid_request_error'
  assert set(error) == {'message', 'type', 'param', 'code'}


@pytest.mark.parametrize(
  'path, body, status, sentence',
  [
    ('v1/completions', None, 405, 'GET /v1/completions: Method Not Allowed'),
    ('v1/nothing', None, 404, 'GET /v1/nothing: Not Found'),
    ('v1/completions', b'{"model": "a", "prompt": ""}', 404, "model='a' is not served; use 'tiny'"),
    ('v1/chat/completions', b'{"model": "tiny", "messages": []}', 400, 'messages=[]: list should have'),
    (
      'v1/chat/completions',
      b'{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", "url": ""}]}]}',
      400,
      "type='image_url': input should be 'text'",
    ),
  ],
)  # fmt: skip
def test_other_errors_have_the_same_shape(address, path, body, status, sentence):
  found, text, _ = send(address + path, body)
  assert found == status and sentence in json.loads(text)['error']['message']


def test_a_longer_body_than_the_limit_is_refused(served):
  """Whether it declares its length or comes in chunks; one at the limit is read."""
  app = serve(served.model.run, max_body=64).app
  body = json.dumps(dict(model=MODEL, prompt='a', max_tokens=2)).encode()
  with running(app) as address:
    assert send(f'{address}v1/completions', body.ljust(64))[0] == 200
    for longer in (body.ljust(65), iter([body, b' ' * 65])):
      status, text, _ = send(f'{address}v1/completions', longer)
      error = json.loads(text)['error']
      assert status == 413 and error['type'] == 'invalid_request_error'
      assert error['message'].endswith('the body is longer than 64 bytes (--max_body); send less at once')
    assert 'tfm_requests_refused_total{status="413"} 2.0' in send(f'{address}metrics')[1]
    assert send(f'{address}v1/completions', body)[0] == 200


def test_a_page_of_another_site_is_refused(address):
  assert send(f'{address}health', Host='evil.example')[0] == 400
  assert send(f'{address}health')[:2] == (200, '{"status":"ok"}')


def test_without_a_template_a_conversation_is_refused(served):
  with pytest.raises(
    ValueError, match='tiny has no chat template; start the server with --chat_template=FILE'
  ):
    dataclasses.replace(served.model, template=None).encode_chat([])


@contextlib.contextmanager
def gated(served, **options):
  """A block with a server of its own whose engine steps when its gate is open: (gate, served, client)."""
  own = serve(served.model.run, **options)
  gate = Gate(own.model.engine)
  with running(own.app) as address:
    with openai.OpenAI(base_url=f'{address}v1', api_key='none', max_retries=0) as client:
      try:
        yield gate, own, client
      finally:
        gate.open(gate.error)


def metric(client, name):
  """A number that Prometheus would read; 0 if it is not there yet."""
  lines = send(str(client.base_url.join('/metrics')))[1].splitlines()
  return next((float(line.split()[-1]) for line in lines if line.startswith(f'{name} ')), 0)


def in_thread(function):
  """Runs a request whose answer nobody reads."""

  def run():
    with contextlib.suppress(openai.OpenAIError):
      function()

  thread = threading.Thread(target=run)
  thread.start()
  return thread


def test_a_full_queue_answers_429(served):
  with gated(served, queue=8) as (gate, own, client):
    fields = dict(model=MODEL, prompt='a', max_tokens=4, n=own.model.engine.rows)
    threads = [in_thread(lambda: client.completions.create(**fields))]
    until(lambda: own.worker.active == own.model.engine.rows)
    threads.append(in_thread(lambda: client.completions.create(**fields)))
    until(lambda: own.worker.waiting)
    with pytest.raises(openai.RateLimitError, match='8 texts wait and the queue has room for 8') as caught:
      client.completions.create(model=MODEL, prompt='a')
    assert caught.value.response.headers['Retry-After'] == '1' and caught.value.code == 'queue_full'
    assert (metric(client, 'tfm_texts_waiting'), metric(client, 'tfm_texts_active')) == (8, 8)
    gate.open()
    for thread in threads:
      thread.join()
    assert client.completions.create(model=MODEL, prompt='a', max_tokens=4).choices
    assert metric(client, 'tfm_requests_total{outcome="finished"}') == 3
    assert metric(client, 'tfm_requests_refused_total{status="429"}') == 1
    assert metric(client, 'tfm_generated_tokens_total') > 0 == metric(client, 'tfm_texts_active')


def test_a_late_request_is_answered_504_and_leaves(served):
  with gated(served, timeout=0.3) as (gate, own, client):
    fields = dict(model=MODEL, prompt='a', max_tokens=40)
    with pytest.raises(openai.InternalServerError, match='took longer than 0.3 s') as caught:
      client.completions.create(**fields)
    assert caught.value.status_code == 504
    with pytest.raises(openai.APIError, match='took longer than 0.3 s'):
      list(client.completions.create(stream=True, **fields))
    assert metric(client, 'tfm_requests_total{outcome="timeout"}') == 2
    gate.open()
    until(lambda: own.worker.active == own.worker.waiting == 0)


def test_a_client_that_leaves_is_not_waited_for(served):
  with gated(served) as (gate, own, client):
    with client.completions.create(model=MODEL, prompt='a', max_tokens=50, n=2, stream=True):
      until(lambda: gate.is_reached)
    place = urllib.parse.urlsplit(str(client.base_url))
    body = json.dumps(dict(model=MODEL, prompt='a', max_tokens=50)).encode()
    with socket.create_connection((place.hostname, place.port)) as connection:
      head = f'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n'
      connection.sendall(head.encode() + b'Content-Type: application/json\r\n\r\n' + body)
      until(lambda: own.worker.waiting == 1)
    until(lambda: own.worker.waiting == 0)
    gate.open()
    until(lambda: own.worker.active == 0)
    assert metric(client, 'tfm_requests_total{outcome="cancelled"}') == 2
    assert metric(client, 'tfm_requests_total{outcome="finished"}') == 0
    assert metric(client, 'tfm_generated_tokens_total') <= 2 * 8  # of the step that ran


def test_a_failing_engine_answers_500_and_is_not_healthy(served):
  with gated(served) as (gate, own, client):
    gate.open(MemoryError('of the device'))
    for options in (dict(), dict(stream=True)):
      with pytest.raises(openai.APIError, match='the engine failed: MemoryError; see the log'):
        list(client.completions.create(model=MODEL, prompt='a', **options))
    assert send(str(client.base_url.join('/health')))[0] == 503
    with pytest.raises(openai.InternalServerError, match='the engine failed'):
      client.completions.create(model=MODEL, prompt='a')
