"""Beam search over a split by a trained encoder-decoder, measured in this process.

  python -m tfm.benchmark.translation runs/multi30k test 4     → {"seconds": …, "bleu": …, "texts": […]}

Measures the second of two passes over all sources of the split, in batches of similar length; the first pass
compiles. `translation_torch` does the same with `transformers`' Marian and the same parameters; `tfm
benchmark translation` alternates both and prints the ratio.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

from tfm.decoding.beam import BeamSearch, Power
from tfm.decoding.translate import translate
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import importing_extra
from tfm.parallel import sharding
from tfm.runs import load


with importing_extra('translation'):
  import sacrebleu


# The defaults of `generate(num_beams=…)` in `transformers`.
PENALTY, STOPPING = Power(1.0), 'likely'


def load_task() -> tuple[load.Run, list[str], list[str], int]:
  """The run, sources, references and beam size that the command line names."""
  workdir, split, beams = sys.argv[1:]
  loaded = load.load(workdir)
  pairs, _ = load.translate_split(loaded, split)
  return loaded, [source for source, _ in pairs], [reference for _, reference in pairs], int(beams)


def print_measurement(translate_all: Callable[[], Sequence[str]], references: Sequence[str]) -> None:
  """Prints, as JSON, the time of the second `translate_all()` and its texts."""
  translate_all()
  start = time.perf_counter()
  texts = translate_all()
  seconds = time.perf_counter() - start
  print(json.dumps(dict(seconds=seconds, bleu=sacrebleu.corpus_bleu(texts, [references]).score, texts=texts)))


def main() -> None:
  """Measures the run that the command line names."""
  loaded, sources, references, beams = load_task()
  model, params = unroll_layers(loaded.model, loaded.params)

  def translate_all():
    translations = dict(
      translate(
        model,
        params,
        loaded.tokenizer,
        sources,
        settings=BeamSearch(beams=beams, penalty=PENALTY, stopping=STOPPING),
        max_extra_tokens=loaded.config.decoding.max_extra_tokens,
        source_tokenizer=loaded.source_tokenizer,
      )
    )
    return [translations[i][0].text for i in range(len(sources))]

  with sharding.context(loaded.mesh, loaded.rules):
    print_measurement(translate_all, references)


if __name__ == '__main__':
  main()
