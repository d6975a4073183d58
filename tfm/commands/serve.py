"""Serves a trained model over HTTP, in the shapes of OpenAI's interface.

  tfm serve --workdir=runs/lm
  tfm serve --workdir=runs/chat --port=8000 --rows=16 --chat_template=chat.jinja

It prints its address when it is ready, and ends with Ctrl-C or SIGTERM: then it accepts no request, and those
that it answers have --grace seconds to end. Any OpenAI client can use it:

  POST /v1/completions, /v1/chat/completions   of a decoder: texts, whole or streamed
  POST /v1/embeddings, /classify               of an encoder; classes, if it was trained to predict them
  POST /v1/completions                         of an encoder-decoder: translations
  GET  /v1/models, /health, /metrics           the last for Prometheus

Requests to a decoder share a batch of --rows texts: one enters as soon as another ends. What waits stands in
a queue; a request beyond --queue is refused with status 429, and a body longer than --max_body with 413. The
text of a request depends on its prompt, its seed and its settings only, and is that of `tfm generate`. Other
models compute one request after another.

Only this machine can open the address. --host=0.0.0.0 opens it to all: whoever reaches it may use the model,
so put a proxy with encryption and passwords before it.
"""

import argparse
import pathlib

from tfm.commands.cli import add_run_flags, assign_overrides
from tfm.errors import require
from tfm.serving import MAX_BODY


OVERRIDES = '--config.'  # --config.model.kernel=NAME, --config.mesh.fsdp=N


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add_run_flags(parser)
  add('--name', metavar='NAME', help='by which clients ask for the model (default: that of the directory)')
  add('--host', default='127.0.0.1', metavar='ADDRESS', help='where it listens (default: this machine alone)')
  add('--port', type=int, default=8000, metavar='N', help='0 for a free one (default: 8000)')
  add('--rows', type=int, metavar='N', help='texts that are continued at once (default: 8)')
  add(
    '--length',
    type=int,
    metavar='N',
    help='the most tokens of a prompt and its continuation (default: the positions of the model, or else '
    'config.data.length and 256 more)',
  )
  add('--queue', type=int, default=64, metavar='N', help='the most texts that wait (default: 64)')
  add(
    '--timeout', type=float, default=300, metavar='SECONDS', help='of a request and its wait (default: 300)'
  )
  add(
    '--max_body',
    type=int,
    default=MAX_BODY,
    metavar='BYTES',
    help=f'the most of the body of a request (default: {MAX_BODY})',
  )
  add('--grace', type=int, default=30, metavar='SECONDS', help='to end requests at the end (default: 30)')
  add('--chat_template', metavar='FILE', help='a Jinja template of conversations, as in transformers')


def main(args: argparse.Namespace) -> None:
  require(args.queue >= 1, f'--queue={args.queue} must be at least 1')
  require(0 < args.timeout < float('inf'), f'--timeout={args.timeout} must be above 0')
  require(args.max_body >= 1, f'--max_body={args.max_body} must be at least 1')
  require(args.grace >= 0, f'--grace={args.grace} must be at least 0')

  from tfm.hf.loaded_model import LoadedModel
  from tfm.runs import load
  from tfm.serving import listen
  from tfm.serving.app import build_app
  from tfm.serving.open_service import Options, open_service

  options = Options(args.queue, args.timeout, args.rows, args.length, args.chat_template)
  with listen.open_listener(args.host, args.port) as listener:
    loaded = load.load(
      args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
    )
    name = args.name or pathlib.Path(args.workdir).resolve().name
    service = open_service(name, LoadedModel.from_run(loaded), options)
    listen.run(build_app(service, args.host, args.max_body), listener, args.grace)
