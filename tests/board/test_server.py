"""The server of a board: its addresses, its files, and who may ask."""

import socket
import urllib.error
import urllib.request

import pytest

from tests.board.served import serving, write_folder
from tfm.board.server import serve
from tfm.commands import cli


@pytest.fixture(scope='module')
def address(tmp_path_factory, tiny):
  with serving(write_folder(tmp_path_factory.mktemp('runs'), tiny)) as address:
    yield address


def get(url, **headers):
  """(status, text) of a page."""
  try:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
      return response.status, response.read().decode()
  except urllib.error.HTTPError as error:
    return error.code, error.read().decode()


@pytest.mark.parametrize(
  'path, status, text',
  [
    ('', 200, 'Which position reads on?'),
    ('run?run=rope', 200, '<h3>Loss</h3>'),
    ('run?run=rope&metric=perplexity', 200, '<h3>Perplexity</h3>'),
    ('compare?run=rope&run=new', 200, '<h3>Validation loss</h3>'),
    ('run?run=rpoe', 400, 'did you mean'),
    ('compare', 400, 'no run is chosen'),
    ('attention?run=rope&text=a', 400, 'rope has no checkpoint yet'),
    ('files/position/report.html', 200, 'Which position reads on?'),
    ('files/rope/metrics.jsonl', 200, '"split": "train"'),
    ('files/../../../../../../etc/hostname', 404, ''),
    ('files/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/hostname', 404, ''),
  ],
)
def test_an_address_has_its_page(address, path, status, text):
  found, page = get(address + path)
  assert found == status and text in page


def test_a_page_under_another_name_is_refused(address):
  """Else a site could read the runs by a name that leads here."""
  assert get(address, Host='evil.example')[0] == 400
  assert get(address, Host='localhost:1234')[0] == 200


def test_a_port_that_is_in_use_is_refused(tmp_path, capsys):
  with socket.create_server(('127.0.0.1', 0)) as other:
    port = other.getsockname()[1]
    assert cli.main(['board', str(tmp_path), f'--port={port}']) == 2
  assert f'--port={port} cannot be used (Address already in use); --port=0' in capsys.readouterr().err


@pytest.mark.parametrize(
  'words, sentence', [(['nowhere'], 'nowhere is no folder'), (['.', '--port=-1'], '--port=-1 must lie in')]
)
def test_invalid_arguments_are_refused(words, sentence, capsys):
  assert cli.main(['board', *words]) == 2
  assert sentence in capsys.readouterr().err


def test_it_listens_on_this_machine_alone(tmp_path, monkeypatch):
  addresses = []
  monkeypatch.setattr('uvicorn.Server.run', lambda self, sockets: addresses.append(sockets[0].getsockname()))
  serve(tmp_path, 0, addresses.append)
  [printed, (host, port)] = addresses
  assert host == '127.0.0.1' and printed == f'http://127.0.0.1:{port}/'
