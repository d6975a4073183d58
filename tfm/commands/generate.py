"""Continues prompts with a trained model, translates them, or tells what is hidden in them.

  tfm generate --workdir=runs/lm --prompt='Once upon a time' --temperature=0.8 --top_p=0.95
  tfm generate --workdir=runs/lm --input=prompts.txt --num_samples=4 --temperature=1 --output=out.jsonl
  tfm generate --workdir=runs/en-de --input=test.en --output=test.de --beams=4
  tfm generate --workdir=runs/bert --prompt='import <mask>' --num_samples=5

A decoder's text begins with its prompt and ends at the model's end-of-text token or after --max_tokens;
one continuation of one prompt appears as it is made. Of an encoder-decoder the prompt is the source. An
encoder tells what stands for each <mask>, and of several texts the i-th has the i-th likeliest tokens.
Several texts are printed in order, each under a line `=== prompt 2 of 3, sample 1 of 4 ===`. What is
sampled depends on its prompt, --seed and its number alone, not on the prompts beside it.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tfm import spec
from tfm.config.assemble import Experiment
from tfm.data.progress import track
from tfm.decoding import beam, fill, loop, text
from tfm.decoding.sampling import Sampling
from tfm.decoding.translate import Translation, translate
from tfm.decoding.unrolled import unrolled
from tfm.errors import require
from tfm.objectives.masked_lm import MASK
from tfm.parallel import sharding
from tfm.runs import load


# Continuations made at once.
ROWS = 32
# New tokens of a decoder, unless told.
MAX_TOKENS = 256
# Flags of the two ways to write.
SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
SEARCH = 'beams', 'penalty', 'stopping'


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='of a run that tfm train made')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--average',
    type=int,
    metavar='N',
    help='average the last N checkpoints (default: config.decoding.average_checkpoints)',
  )
  add('--prompt', action='append', metavar='TEXT', help='may be empty; may be given several times')
  add('--input', metavar='FILE', help='a prompt a line, in UTF-8; an empty line is an empty prompt')
  add(
    '--output',
    metavar='FILE',
    help='write JSON lines {prompt, sample, text}, of beam search and of an encoder with score, there and nothing to stdout; of an '
    'encoder-decoder, unless FILE ends in .jsonl, a text a line',
  )
  add(
    '--max_tokens',
    type=int,
    metavar='N',
    help='new tokens at most (default: 256; of an encoder-decoder, '
    'config.decoding.max_extra_tokens more than its source has)',
  )
  add(
    '--temperature',
    type=float,
    metavar='T',
    help='divides the logits; 0 takes the likeliest token (default: 1; of an encoder-decoder, beam search)',
  )
  add('--top_k', type=int, metavar='K', help='only the K likeliest tokens (default: 0, all)')
  add(
    '--top_p',
    type=float,
    metavar='P',
    help='only the likeliest tokens that hold probability P (default: 1, all)',
  )
  add(
    '--min_p',
    type=float,
    metavar='P',
    help='only tokens of P times the greatest probability or more (default: 0, all)',
  )
  add(
    '--repetition_penalty',
    type=float,
    metavar='X',
    help='divides the logits of tokens that are there already, or multiplies negative ones (default: 1, none)',
  )
  add('--beams', type=int, metavar='K', help='beam search with K hypotheses (default: config.decoding.beams)')
  add(
    '--penalty',
    metavar='SPEC',
    help="of a hypothesis's length: gnmt(alpha), power(alpha) (default: config.decoding.length_penalty)",
  )
  add(
    '--stopping',
    choices=beam.STOPPING,
    help='beam search stops when nothing better can come, when nothing better would end now, or when K hypotheses have '
    'ended (default: config.decoding.stopping)',
  )
  add('--forced', metavar='TEXT', help='how the target of an encoder-decoder begins')
  add('--seed', type=int, default=0, metavar='N', help='of the sampling (default: 0)')
  add(
    '--num_samples',
    type=int,
    default=1,
    metavar='N',
    help='texts for each prompt, of beam search the N best (default: 1)',
  )


def main(args):
  prompts = read_prompts(args.prompt, args.input)
  given, search = (
    {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for names in (SAMPLING, SEARCH)
  )
  require(
    not (search and given),
    f'--{next(iter(given), "")} is for sampling, and --{next(iter(search), "")} for beam '
    'search; give the one or the other',
  )
  sampling = Sampling(**{'temperature': 1.0} | given)
  sampling.check()
  require(
    args.max_tokens is None or args.max_tokens >= 1, f'--max_tokens={args.max_tokens} must be at least 1'
  )
  require(args.num_samples >= 1, f'--num_samples={args.num_samples} must be at least 1')
  require(0 <= args.seed < 2**32, f'--seed={args.seed} must lie in [0, 2^32)')
  require(
    pathlib.Path(args.workdir).is_dir(), f'--workdir={args.workdir} is no directory; tfm train makes one'
  )

  loaded = load.load(args.workdir, args.step, args.average)
  pairs = hasattr(loaded.model, 'encode')
  require(
    pairs or args.forced is None, '--forced is for an encoder-decoder; a decoder is forced by its prompt'
  )
  encodes = loaded.config.model.architecture == 'encoder'
  require(
    not encodes or Experiment(loaded.config).objective.masked_fraction > 0,
    f'--workdir={args.workdir} holds a model that classifies, and writes nothing; tfm evaluate tells how well it does',
  )
  require(
    not encodes or not (search or given or args.max_tokens),
    'an encoder tells the likeliest tokens for each <mask>; leave out what is for sampling or beam search',
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(sharding.context(loaded.mesh, loaded.rules))
    if encodes:
      written = told(loaded, prompts, args)
    elif search or (pairs and not given):
      written = searched(loaded, prompts, args, pairs)
    else:
      written = sampled(loaded, prompts, args, sampling, pairs)
    del loaded  # the parameters need not be there twice
    output = args.output and stack.enter_context(open(args.output, 'w', encoding='utf-8'))
    if len(prompts) == args.num_samples == 1 and not output:
      for piece in next(written).pieces:
        print(piece, end='', flush=True)
      print()
      return
    for text in written:
      i, j, whole = text.prompt, text.sample, ''.join(text.pieces)
      if not output:
        print(f'=== prompt {i + 1} of {len(prompts)}, sample {j + 1} of {args.num_samples} ===')
        print(whole, end='\n\n', flush=True)
      elif pairs and not args.output.endswith('.jsonl'):
        print(' '.join(whole.splitlines()), file=output)
      else:
        score = {} if text.score is None else dict(score=text.score)
        print(
          json.dumps(dict(prompt=prompts[i], sample=j, text=whole, **score), ensure_ascii=False), file=output
        )


class Text(NamedTuple):
  """What was written for a prompt, in pieces as they come; its score, of beam search."""

  prompt: int
  sample: int
  pieces: Iterable[str]
  score: float | None = None


def told(loaded: load.Run, prompts: list[str], args: argparse.Namespace) -> Iterator[Text]:
  """The texts with tokens for what they hide, in order."""
  tokenizer = loaded.tokenizer
  rows = [
    np.array([tokenizer.bos_id, *tokenizer.encode(prompt), tokenizer.eos_id], np.int32) for prompt in prompts
  ]
  hidden = tokenizer.special_token_ids.get(MASK, tokenizer.vocab_size - 1)
  found = fill.fill(loaded.model, loaded.params, rows, hidden, args.num_samples)
  for i, best in enumerate(track(found, 'texts', len(prompts)) if len(prompts) > 1 else found):
    for j, (tokens, score) in enumerate(best):
      yield Text(i, j, [tokenizer.decode(tokens)], score)


def sampled(
  loaded: load.Run, prompts: list[str], args: argparse.Namespace, sampling: Sampling, pairs: bool
) -> Iterator[Text]:
  """Texts drawn token by token, in order."""
  tokenizer, eos = loaded.tokenizer, loaded.tokenizer.eos_id
  begins = [args.forced or ''] * len(prompts) if pairs else prompts
  tokens = [
    tokenizer.target(begin) if pairs else np.array([tokenizer.bos_id, *tokenizer.encode(begin)], np.int32)
    for begin in begins
  ]
  sources = read_sources(loaded, prompts) if pairs else None
  longest = max(map(len, sources)) + loaded.config.decoding.max_extra_tokens if pairs else MAX_TOKENS
  max_tokens = args.max_tokens or longest
  loop.check(loaded.model, tokens, max_tokens, sources)
  rows = list(itertools.product(range(len(prompts)), range(args.num_samples)))
  model, params = unrolled(loaded.model, loaded.params)
  del loaded
  for start in range(0, len(rows), ROWS):
    batch = rows[start : start + ROWS]
    chunks = loop.generate(
      model,
      params,
      [tokens[i] for i, _ in batch],
      max_tokens=max_tokens,
      eos=eos,
      sampling=sampling,
      seed=args.seed,
      samples=[j for _, j in batch],
      sources=[sources[i] for i, _ in batch] if pairs else None,
    )
    if len(rows) == 1 and not args.output:
      yield Text(0, 0, itertools.chain(begins, text.stream(tokenizer, (new[0] for new in chunks))))
      return
    label = f'texts {start + 1}-{start + len(batch)} of {len(rows)}'
    made = track(chunks, label, -(-max_tokens // loop.CHUNK))
    for (i, j), new in zip(batch, zip(*made)):
      yield Text(i, j, [begins[i] + tokenizer.decode(np.concatenate(new))])


def searched(loaded: load.Run, prompts: list[str], args: argparse.Namespace, pairs: bool) -> Iterator[Text]:
  """The best texts of beam search, in order."""
  asked = loaded.config.decoding
  beams = asked.beams if args.beams is None else args.beams
  require(beams >= 1, f'--beams={beams} must be at least 1')
  require(
    args.num_samples <= beams,
    f'--num_samples={args.num_samples} is more than the {beams} hypotheses of --beams={beams}',
  )
  penalty = (
    Experiment(loaded.config).length_penalty
    if args.penalty is None
    else spec.choose(args.penalty, beam.PENALTIES)
  )
  stopping = args.stopping or asked.stopping
  tokenizer = loaded.tokenizer
  model, params = unrolled(loaded.model, loaded.params)
  if pairs:
    found = translate(
      model,
      params,
      tokenizer,
      prompts,
      beams=beams,
      penalty=penalty,
      longer=asked.max_extra_tokens,
      max_tokens=args.max_tokens,
      source_tokenizer=loaded.source_tokenizer,
      forced=args.forced or '',
      stopping=stopping,
    )
  else:
    found = continued(
      model, params, tokenizer, prompts, beams, penalty, args.max_tokens or MAX_TOKENS, stopping
    )
  del loaded
  if len(prompts) > 1:
    found = track(found, 'texts', len(prompts))
  found = dict(found)
  for i in range(len(prompts)):
    for j, (whole, score) in enumerate(found[i][: args.num_samples]):
      yield Text(i, j, [whole], score)


def continued(
  model, params, tokenizer, prompts, beams, penalty, max_tokens, stopping
) -> Iterator[tuple[int, list[Translation]]]:
  """As `translate`, of a decoder."""
  tokens = [np.array([tokenizer.bos_id, *tokenizer.encode(prompt)], np.int32) for prompt in prompts]
  for start in range(0, len(prompts), ROWS):
    batch = range(start, min(start + ROWS, len(prompts)))
    hypotheses = beam.search(
      model,
      params,
      [tokens[i] for i in batch],
      max_tokens=max_tokens,
      eos=tokenizer.eos_id,
      beams=beams,
      penalty=penalty,
      stopping=stopping,
    )
    for i, best in zip(batch, hypotheses):
      yield i, [Translation(prompts[i] + tokenizer.decode(new), score) for new, score in best]


def read_sources(loaded: load.Run, texts: list[str]) -> list[np.ndarray]:
  """The tokens of sources, with their ends."""
  tokenizer = loaded.source_tokenizer or loaded.tokenizer
  return [tokenizer.source(text) for text in texts]


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
