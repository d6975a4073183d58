"""A plain server around `generate` of `transformers`, for `tfm benchmark serving`: one request at a time.

  python -m tfm.benchmark.serving_torch FOLDER

serves the GPT-2 of bytes in a folder at a free port of this machine, which it prints.
"""

import sys
import threading

import torch
import transformers

from tfm.data.tokenizers.bytes import Bytes
from tfm.errors import importing_extra
from tfm.serving import listen


with importing_extra('serve'):
  import fastapi


def build_app(folder: str) -> fastapi.FastAPI:
  """The application: /v1/completions with `prompt` and `max_tokens`."""
  model, lock, end = transformers.AutoModelForCausalLM.from_pretrained(folder), threading.Lock(), Bytes.eos_id
  app = fastapi.FastAPI()

  @app.post('/v1/completions')
  def complete(body: dict):
    prompt = torch.tensor([[end, *body['prompt'].encode()]])
    with lock, torch.inference_mode():
      whole = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=body['max_tokens'],
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
      )
    tokens = [token for token in whole[0, prompt.shape[1] :].tolist() if token != end]
    text = bytes(tokens).decode('utf-8', 'replace')
    return dict(choices=[dict(text=text)], usage=dict(completion_tokens=len(tokens)))

  return app


if __name__ == '__main__':
  listen.run(build_app(sys.argv[1]), listen.open_listener(listen.LOOPBACK, 0), grace=1)
