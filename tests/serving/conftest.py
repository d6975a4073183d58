"""A small trained run, and its server."""

import pytest

from tests.running_app import running
from tests.serving.server import TEMPLATE, serve
from tfm.hf import loaded_model
from tfm.runs.train import train


@pytest.fixture(scope='package')
def run_dir(tiny, tmp_path_factory):
  """A run of a tiny decoder, whose random texts differ."""
  folder = tmp_path_factory.mktemp('serving') / 'tiny'
  train(tiny(**{'data.length': 48}), folder)
  return folder


@pytest.fixture(scope='package')
def template(tmp_path_factory):
  """The file of a chat template."""
  file = tmp_path_factory.mktemp('chat') / 'chat.jinja'
  file.write_text(TEMPLATE, encoding='utf-8')
  return file


@pytest.fixture(scope='package')
def served(run_dir, template):
  """The model with its engine; only one server at a time may use it."""
  return serve(loaded_model.load(str(run_dir)), template)


@pytest.fixture(scope='package')
def address(served):
  """Of a server that runs for all tests."""
  with running(served.app) as address:
    yield address
