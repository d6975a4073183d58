"""The service of a run, by the kind of its model."""

import dataclasses

from tfm.errors import require
from tfm.hf.loaded_model import LoadedModel
from tfm.serving.encodings import EncodingService
from tfm.serving.served_model import serve_model
from tfm.serving.service import Service
from tfm.serving.texts import TextService
from tfm.serving.translations import TranslationService
from tfm.serving.worker import Worker


ROWS = 8


@dataclasses.dataclass(frozen=True)
class Options:
  """How a model is served.

  Attributes:
    queue: the most texts, or requests of a model that is no decoder, that wait.
    timeout: of a request and its wait, in seconds.
    rows, length, template: of a decoder, see `serve_model`; None: the default.
  """

  queue: int
  timeout: float
  rows: int | None = None
  length: int | None = None
  template: str | None = None


def open_service(name: str, run: LoadedModel, options: Options) -> Service:
  """The service of a run.

  Raises:
    ValueError: for a model that is not served, and for options that its service does not read.
  """
  require(not run.config.model.patch, f'{run.kind} reads images, which are not served')
  run.require_generation()
  run.require_tokenizer()
  if run.config.model.architecture == 'decoder':
    served = serve_model(
      run, name, ROWS if options.rows is None else options.rows, options.length, options.template
    )
    worker = Worker(served.engine, options.queue, served.context)
    return TextService(served, worker, options.timeout)
  for flag, value in (
    ('rows', options.rows),
    ('length', options.length),
    ('chat_template', options.template),
  ):
    require(value is None, f'--{flag}={value} is for decoders, and this is {run.kind}; remove it')
  services = dict(encoder=EncodingService, encoder_decoder=TranslationService)
  return services[run.config.model.architecture](name, run, options.queue, options.timeout)
