"""In-context learning of languages: the share of predicted symbols that the automaton of the text allows."""

import collections
import dataclasses
import itertools

import jax
import numpy as np

from tfm.data.sources import regbench
from tfm.evaluation.length_extrapolation import explain_impossible, validate_model
from tfm.mixers.protocol import Context
from tfm.parallel import host_arrays, sharding
from tfm.shapes import Int
from tfm.spec import PositiveInt
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class ValidSymbols(protocol.Measure):
  """`valid_symbols`, the share of symbols of strings for which the likeliest symbol is one that the automaton
  allows there (Akyürek et al. 2024, In-Context Language Learning, "accuracy"), and `valid_symbols_at_string`,
  of the first, second, … string of a text: it rises where a model learns from the strings before. For
  decoders trained on source='regbench(…)'.

  The separator is left out of the comparison: where strings end is random.

  Attributes:
    texts: how many of the validation split are read; rows: how many at once.
  """

  texts: PositiveInt = 100
  rows: PositiveInt = 10

  def validate(self, experiment, model):
    if not isinstance(experiment.source, regbench.Regbench):
      raise ValueError(
        "measures='valid_symbols' needs a run that trains on languages, and "
        f"config.data.source={experiment.config.data.source!r}; use config.data.source='regbench'"
      )
    if self.texts > experiment.source.held_out:
      raise ValueError(
        f'valid_symbols(texts={self.texts}) reads more texts than '
        f'config.data.source={experiment.config.data.source!r} holds out, {experiment.source.held_out}'
      )
    validate_model(model, ())

  def metric_names(self, validation):
    return ('valid_symbols',)

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    symbols = find_symbols(run)
    texts = [self.read_text(run, index, symbols) for index in range(self.texts)]
    length = max(len(tokens) for tokens, _ in texts)
    if reason := explain_impossible(run.model, length):
      return lambda params: [Value('valid_symbols', None, why=reason)]

    @jax.jit
    def predict(params, tokens: Int[np.ndarray, 'B T']) -> Int[np.ndarray, 'B T']:
      logits, _ = run.model.apply({'params': params}, tokens, Context.contiguous(tokens))
      return logits[..., np.array([*symbols.values()])].argmax(-1)

    def measure(params):
      found = collections.defaultdict(list)
      with sharding.context(run.mesh, run.rules):
        for first in range(0, len(texts), self.rows):
          part = texts[first : first + self.rows]
          # A causal model does not see the zeros after a text.
          tokens = np.stack([np.pad(tokens, (0, length - len(tokens))) for tokens, _ in part])
          for row, (_, places) in zip(host_arrays.fetch(predict(params, tokens)), part):
            for place, string, valid in places:
              found[string].append(row[place - 1] in valid)
      return [
        Value('valid_symbols', float(np.mean([*itertools.chain(*found.values())]))),
        *(
          Value('valid_symbols_at_string', float(np.mean(found[string])), string)
          for string in sorted(found)
          if string <= run.experiment.source.strings // 2  # as many has every text
        ),
      ]

    return measure

  def read_text(self, run, index: int, symbols) -> tuple[Int[np.ndarray, 'T'], list[tuple[int, int, set]]]:
    """The tokens of a text, and of each symbol its place, its string and the places in `symbols` of what is
    valid there.
    """
    source, order = run.experiment.source, {symbol: i for i, symbol in enumerate(symbols)}
    automaton, strings = source.document('validation', index)
    tokens = run.encode(source.example(source.draw('validation', index), is_test=False)[0])
    place = len(tokens) - sum(map(len, strings)) - (len(strings) - 1)
    places = []
    for number, string in enumerate(strings, 1):
      state = 0
      for symbol in string:
        places.append((place, number, {order[valid] for valid in automaton[state]}))
        state = automaton[state][symbol]
        place += 1
      place += 1  # the separator
    return tokens, places


def find_symbols(run) -> dict[str, int]:
  """Symbol → token.

  Raises:
    ValueError: if the tokenizer splits a symbol.
  """
  start, symbols = len(run.encode(regbench.SEPARATOR)), {}
  for i in range(run.experiment.source.symbols):
    tokens = run.encode(f'{regbench.SEPARATOR} s{i + 1}')[start:]
    if len(tokens) != 1:
      raise ValueError(
        f'config.data.tokenizer={run.config.data.tokenizer!r} splits the symbols of regbench, and '
        "measures='valid_symbols' needs one token for each; use 'words'"
      )
    symbols[f's{i + 1}'] = int(tokens[0])
  return symbols
