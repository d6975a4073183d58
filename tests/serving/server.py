"""A model to serve, with its application."""

import dataclasses
import threading
from typing import Any

from tfm.serving import MAX_BODY
from tfm.serving.app import build_app
from tfm.serving.served_model import ServedModel, serve_model
from tfm.serving.texts import TextService
from tfm.serving.worker import Worker


ROWS, LENGTH = 3, 64
TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}
{{- message.role }}: {{ message.content }}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"""


@dataclasses.dataclass
class Served:
  """A model, its worker, and the application around them."""

  model: ServedModel
  worker: Worker
  app: Any


def serve(run, template=None, queue=64, timeout=60.0, rows=ROWS, max_body=MAX_BODY):
  """A run with an engine of its own."""
  model = serve_model(run, 'tiny', rows, LENGTH, template and str(template))
  worker = Worker(model.engine, queue, model.context)
  return Served(model, worker, build_app(TextService(model, worker, timeout), max_body=max_body))


class Gate:
  """Lets an engine step only while it is open."""

  def __init__(self, engine):
    self._open, self._step, self.error = threading.Event(), engine.step, None
    self.is_reached = False
    engine.step = self._pass

  def _pass(self):
    self.is_reached = True
    self._open.wait()
    if self.error:
      raise self.error
    return self._step()

  def open(self, error=None):
    """From now on steps run, or raise an error."""
    self.error = error
    self._open.set()


def until(condition):
  """Waits for what another thread does."""
  for _ in range(1000):
    if condition():
      return
    threading.Event().wait(0.01)
  raise AssertionError('it did not happen within 10 s')
