"""Generates text with a trained model: continues prompts, translates them, or fills their masks.

  tfm generate --workdir=runs/lm --prompt='Once upon a time' --temperature=0.8 --top_p=0.95
  tfm generate --workdir=runs/lm --input=prompts.txt --num_samples=4 --temperature=1 --to=out.jsonl
  tfm generate --workdir=runs/en-de --input=test.en --to=test.de --beams=4
  tfm generate --workdir=runs/bert --prompt='import <mask>' --num_samples=5

A decoder's text starts with its prompt and ends at the end-of-text token or after --max_tokens; a single
continuation of a single prompt is streamed. For an encoder-decoder the prompt is the source. An encoder
predicts a token for each <mask>; sample i has the i-th most likely tokens. Several texts are printed in
order, each under a line `=== prompt 2 of 3, sample 1 of 4 ===`. A sample depends on its prompt, --seed and
its number only, not on other prompts.

--config.mesh.data=1 --config.mesh.fsdp=-1 divides the parameters among all devices, also among those of
several processes, which generate together, as in `tfm train`.
"""

import contextlib
import dataclasses
import itertools
import json
import os

from tfm.commands.cli import add_process_flags, add_run_flags, assign_overrides, validate_flag
from tfm.errors import require
from tfm.spec import MAX_SIZE


SEARCH = 'beams', 'penalty', 'stopping'  # flags of beam search
MAX_SAMPLES = 2**16  # of one text
MAX_INPUT = 2**30  # bytes of a file of prompts
OVERRIDES = '--config.'  # --config.model.kernel=NAME, --config.mesh.fsdp=N


def arguments(parser):
  add = parser.add_argument
  add_run_flags(parser)
  add('--prompt', action='append', metavar='TEXT', help='may be empty; repeatable')
  add('--input', metavar='FILE', help='one prompt per line, in UTF-8; an empty line is an empty prompt')
  add(
    '--to',
    metavar='FILE',
    help='write JSON lines {prompt, sample, text} to FILE instead of stdout, with a score for beam search '
    'and encoders; for an encoder-decoder, write one text per line unless FILE ends in .jsonl',
  )
  add(
    '--max_tokens',
    type=int,
    metavar='N',
    help='maximum number of new tokens (default: 256, or as many as the model has positions for; for an '
    'encoder-decoder, the length of the source plus config.decoding.max_extra_tokens)',
  )
  add(
    '--temperature',
    type=float,
    metavar='T',
    help='divides the logits; 0: the most likely token (default: 1; for an encoder-decoder, beam search)',
  )
  add('--top_k', type=int, metavar='K', help='only the K most likely tokens (default: 0, all)')
  add(
    '--top_p',
    type=float,
    metavar='P',
    help='only the most likely tokens with total probability P (default: 1, all)',
  )
  add(
    '--min_p',
    type=float,
    metavar='P',
    help='only tokens with at least P times the greatest probability (default: 0, all)',
  )
  add(
    '--repetition_penalty',
    type=float,
    metavar='X',
    help='divides the logits of tokens that occurred, or multiplies negative ones (default: 1, none)',
  )
  add('--beams', type=int, metavar='K', help='beam search with K hypotheses (default: config.decoding.beams)')
  add(
    '--penalty',
    metavar='SPEC',
    help='length penalty: gnmt(alpha), power(alpha) (default: config.decoding.length_penalty)',
  )
  add(
    '--stopping',
    metavar='proven|likely|first',
    help='stopping rule of beam search: no better score is possible (proven), no live hypothesis would '
    'be better if it ended now (likely), or K hypotheses have ended (first) (default: '
    'config.decoding.stopping)',
  )
  add('--forced', metavar='TEXT', help='start of the target of an encoder-decoder')
  add('--seed', type=int, default=0, metavar='N', help='of sampling (default: 0)')
  add(
    '--num_samples',
    type=int,
    default=1,
    metavar='N',
    help='texts per prompt; the N best for beam search (default: 1)',
  )
  add_process_flags(parser)


def validate(args):
  for flag, field in (('penalty', 'length_penalty'), ('stopping', 'stopping')):
    if value := getattr(args, flag):
      validate_flag(flag, f'decoding.{field}', value)


def main(args):
  from tfm.commands._generated_texts import fill_texts, sample_texts, search_texts
  from tfm.decoding.sampling import Sampling
  from tfm.parallel import processes, sharding
  from tfm.runs import load

  sampling_names = tuple(field.name for field in dataclasses.fields(Sampling))
  prompts = read_prompts(args.prompt, args.input)
  sampling_flags, search_flags = (
    {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for names in (sampling_names, SEARCH)
  )
  require(
    not (search_flags and sampling_flags),
    f'--{next(iter(sampling_flags), "")} (sampling) and --{next(iter(search_flags), "")} (beam '
    'search) exclude each '
    'other; remove one of them',
  )
  sampling = Sampling(**{'temperature': 1.0} | sampling_flags)
  sampling.validate()
  require(
    args.max_tokens is None or 1 <= args.max_tokens <= MAX_SIZE,
    f'--max_tokens={args.max_tokens} must be at least 1 and at most {MAX_SIZE:,}',
  )
  require(
    1 <= args.num_samples <= MAX_SAMPLES,
    f'--num_samples={args.num_samples} must be at least 1 and at most {MAX_SAMPLES:,}',
  )
  require(0 <= args.seed < 2**32, f'--seed={args.seed} must lie in [0, 2^32)')

  loaded = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  require(
    loaded.config.model.architecture != 'image_text',
    f'--workdir={args.workdir} holds an image-text model, which generates no text; use tfm evaluate',
  )
  loaded.require_generation()
  is_encoder_decoder = hasattr(loaded.model, 'encode')
  require(
    is_encoder_decoder or args.forced is None,
    '--forced requires an encoder-decoder; for a decoder use --prompt',
  )
  require(
    loaded.config.model.architecture != 'diffusion',
    f'--workdir={args.workdir} holds a diffusion model, which generates no text; use tfm sample',
  )
  is_encoder = loaded.config.model.architecture == 'encoder'
  require(
    not is_encoder or loaded.experiment.objective.masked_fraction > 0,
    f'--workdir={args.workdir} holds a classifier, which generates no text; use tfm evaluate',
  )
  require(
    not is_encoder or not (search_flags or sampling_flags or args.max_tokens),
    'an encoder only fills <mask>; remove the flags of sampling, beam search and --max_tokens',
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(sharding.context(loaded.mesh, loaded.rules))
    if is_encoder:
      texts = fill_texts(loaded, prompts, args)
    elif search_flags or (is_encoder_decoder and not sampling_flags):
      texts = search_texts(loaded, prompts, args, is_encoder_decoder)
    else:
      texts = sample_texts(loaded, prompts, args, sampling, is_encoder_decoder)
    del loaded  # frees the scanned parameters after unrolling
    file = args.to if processes.is_main_process() else os.devnull
    output = args.to and stack.enter_context(open(file, 'w', encoding='utf-8'))
    if len(prompts) == args.num_samples == 1 and not output:
      pieces = iter(next(texts).pieces)
      # What is logged while the first new tokens are computed, such as kernels, stands before the text.
      first = list(itertools.islice(pieces, 2))
      for piece in itertools.chain(first, pieces):
        print(piece, end='', flush=True)
      print()
      return
    for text in texts:
      i, j, content = text.prompt, text.sample, ''.join(text.pieces)
      if not output:
        print(f'=== prompt {i + 1} of {len(prompts)}, sample {j + 1} of {args.num_samples} ===')
        print(content, end='\n\n', flush=True)
      elif is_encoder_decoder and not args.to.endswith('.jsonl'):
        print(' '.join(content.splitlines()), file=output)
      else:
        score = {} if text.score is None else dict(score=text.score)
        print(
          json.dumps(dict(prompt=prompts[i], sample=j, text=content, **score), ensure_ascii=False),
          file=output,
        )


def read_prompts(texts: list[str] | None, file: str | None) -> list[str]:
  """The prompts of the command line, or the lines of a file."""
  require((texts is None) != (file is None), 'use either --prompt=TEXT or --input=FILE')
  if file is None:
    for prompt in texts:
      # Invalid UTF-8 on the command line arrives as lone surrogates.
      require(not any('\ud800' <= c <= '\udfff' for c in prompt), f'--prompt={prompt!r} is not UTF-8 text')
    return texts
  with open(file, 'rb') as content:
    data = content.read(MAX_INPUT + 1)
  require(len(data) <= MAX_INPUT, f'--input={file} has more than {MAX_INPUT:,} bytes; use several files')
  try:
    lines = data.decode('utf-8-sig').replace('\r\n', '\n').replace('\r', '\n').split('\n')
  except UnicodeDecodeError as error:
    raise ValueError(f'--input={file} is not UTF-8 text: {error}') from None
  if lines[-1] == '':
    lines.pop()
  require(bool(lines), f'--input={file} is empty; write one prompt per line')
  return lines
