"""Continues prompts with a trained model.

  tfm generate --workdir=runs/lm --prompt='Once upon a time' --temperature=0.8 --top_p=0.95
  tfm generate --workdir=runs/lm --input=prompts.txt --num_samples=4 --temperature=1 --output=out.jsonl

One continuation of one prompt appears as it is made; several are printed in order, each under a line
`=== prompt 2 of 3, sample 1 of 4 ===`. Every text begins with its prompt and ends at the model's
end-of-text token or after --max_tokens. A prompt's continuations depend on --seed and their number
alone, not on the prompts beside it.
"""

import contextlib
import itertools
import json
import pathlib

import numpy as np

from tfm import run
from tfm.config import require
from tfm.data.progress import track
from tfm.decoding import loop, text
from tfm.decoding.sampling import Sampling
from tfm.decoding.unrolled import unrolled
from tfm.parallel import sharding

# Continuations made at once.
ROWS = 32


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='of a run that tfm train made')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add('--prompt', action='append', metavar='TEXT', help='may be empty; may be given several times')
  add('--input', metavar='FILE', help='a prompt a line, in UTF-8; an empty line is an empty prompt')
  add('--output', metavar='FILE', help='write JSON lines {prompt, sample, text} there, nothing to stdout')
  add('--max_tokens', type=int, default=256, metavar='N', help='new tokens at most (default: 256)')
  add('--temperature', type=float, default=1.0, metavar='T',
      help='divides the logits; 0 takes the likeliest token (default: 1)')
  add('--top_k', type=int, default=0, metavar='K', help='only the K likeliest tokens (default: 0, all)')
  add('--top_p', type=float, default=1.0, metavar='P',
      help='only the likeliest tokens that hold probability P (default: 1, all)')
  add('--seed', type=int, default=0, metavar='N', help='of the sampling (default: 0)')
  add('--num_samples', type=int, default=1, metavar='N', help='continuations of each prompt (default: 1)')


def main(args):
  prompts = read_prompts(args.prompt, args.input)
  sampling = Sampling(args.temperature, args.top_k, args.top_p)
  sampling.check()
  require(args.max_tokens >= 1, f'--max_tokens={args.max_tokens} must be at least 1')
  require(args.num_samples >= 1, f'--num_samples={args.num_samples} must be at least 1')
  require(0 <= args.seed < 2**32, f'--seed={args.seed} must lie in [0, 2^32)')
  require(pathlib.Path(args.workdir).is_dir(),
          f'--workdir={args.workdir} is no directory; tfm train makes one')

  loaded = run.load(args.workdir, args.step)
  tokenizer, eos = loaded.tokenizer, loaded.tokenizer.eos_id
  tokens = [np.array([eos, *tokenizer.encode(prompt)], np.int32) for prompt in prompts]
  loop.check(loaded.model, tokens, args.max_tokens)
  rows = list(itertools.product(range(len(prompts)), range(args.num_samples)))

  with contextlib.ExitStack() as stack:
    stack.enter_context(sharding.context(loaded.mesh, loaded.rules))
    output = args.output and stack.enter_context(open(args.output, 'w', encoding='utf-8'))
    model, params = unrolled(loaded.model, loaded.params)
    del loaded   # the parameters need not be there twice

    def chunks(rows):
      return loop.generate(
        model, params, [tokens[i] for i, _ in rows], max_tokens=args.max_tokens, eos=eos, sampling=sampling,
        seed=args.seed, samples=[j for _, j in rows])

    if len(rows) == 1 and not output:
      print(prompts[0], end='', flush=True)
      for piece in text.stream(tokenizer, (new[0] for new in chunks(rows))):
        print(piece, end='', flush=True)
      print()
      return

    for start in range(0, len(rows), ROWS):
      batch = rows[start:start + ROWS]
      label = f'texts {start + 1}-{start + len(batch)} of {len(rows)}'
      made = track(chunks(batch), label, -(-args.max_tokens // loop.CHUNK))
      for (i, j), new in zip(batch, zip(*made)):
        whole = prompts[i] + tokenizer.decode(np.concatenate(new))
        if output:
          print(json.dumps(dict(prompt=prompts[i], sample=j, text=whole), ensure_ascii=False), file=output)
        else:
          print(f'=== prompt {i + 1} of {len(prompts)}, sample {j + 1} of {args.num_samples} ===')
          print(whole, end='\n\n', flush=True)


def read_prompts(given: list[str] | None, file: str | None) -> list[str]:
  """The prompts of the command line or of a file's lines."""
  require((given is None) != (file is None), 'give either --prompt=TEXT or --input=FILE')
  if file is None:
    for prompt in given:
      # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
      require(not any('\ud800' <= c <= '\udfff' for c in prompt), f'--prompt={prompt!r} is not UTF-8 text')
    return given
  try:
    lines = pathlib.Path(file).read_text(encoding='utf-8-sig').split('\n')
  except UnicodeDecodeError as error:
    raise ValueError(f'--input={file} is not UTF-8 text: {error}') from None
  if lines[-1] == '':
    lines.pop()
  require(bool(lines), f'--input={file} is empty; write a prompt a line')
  return lines
