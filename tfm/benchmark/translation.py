"""Beam search over a split by a trained encoder-decoder, as one process measures it.

  python -m tfm.benchmark.translation runs/multi30k test 4     → {"seconds": …, "bleu": …, "texts": […]}

The second of two passes over all sources of the split, in batches of like length; what is compiled is compiled in the
first. `translation_torch` does the same with `transformers`' Marian and the same parameters; `tfm benchmark
translation` runs both in turn and gives the ratio.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

import sacrebleu

from tfm.decoding.beam import Power
from tfm.decoding.translate import translate
from tfm.decoding.unrolled import unrolled
from tfm.parallel import sharding
from tfm.runs import load


# The length penalty and the rule of stopping that `generate(num_beams=…)` has unless told.
PENALTY, STOPPING = Power(1.0), 'likely'


def asked() -> tuple[load.Run, list[str], list[str], int]:
  """The run, the sources, the references and the number of beams that the command line names."""
  workdir, split, beams = sys.argv[1:]
  loaded = load.load(workdir)
  pairs, _ = load.written(loaded, split)
  return loaded, [source for source, _ in pairs], [reference for _, reference in pairs], int(beams)


def report(write: Callable[[], Sequence[str]], references: Sequence[str]) -> None:
  """Prints, as JSON, how long the second `write()` takes, and what it writes."""
  write()
  start = time.perf_counter()
  texts = write()
  seconds = time.perf_counter() - start
  print(json.dumps(dict(seconds=seconds, bleu=sacrebleu.corpus_bleu(texts, [references]).score, texts=texts)))


def main() -> None:
  """Measures what the command line names."""
  loaded, sources, references, beams = asked()
  model, params = unrolled(loaded.model, loaded.params)

  def write():
    found = dict(
      translate(
        model,
        params,
        loaded.tokenizer,
        sources,
        beams=beams,
        penalty=PENALTY,
        longer=loaded.config.decoding.longer,
        source_tokenizer=loaded.source_tokenizer,
        stopping=STOPPING,
      )
    )
    return [found[i][0].text for i in range(len(sources))]

  with sharding.context(loaded.mesh, loaded.rules):
    report(write, references)


if __name__ == '__main__':
  main()
