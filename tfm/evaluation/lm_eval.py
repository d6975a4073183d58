"""A trained decoder as a model of EleutherAI's lm-evaluation-harness (Gao et al. 2024).

import lm_eval, tfm
from tfm.evaluation.lm_eval import TfmLM

results = lm_eval.simple_evaluate(model=TfmLM(tfm.load('runs/lm')), tasks=['hellaswag'])
"""

import collections
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.data.progress_bar import track
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding import loop
from tfm.decoding.sampling import Sampling
from tfm.decoding.unroll_layers import disable_scan, unroll_layers
from tfm.errors import importing_extra, require, suggest
from tfm.layers.cross_entropy import token_cross_entropy
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.parallel import host_arrays, sharding
from tfm.shapes import Array, Bool, Float, Int, PyTree


with importing_extra('lm-eval'):
  from lm_eval.api.instance import Instance
  from lm_eval.api.model import TemplateLM
  from lm_eval.models.utils import normalize_gen_kwargs
  from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

SAMPLING = 'temperature', 'top_k', 'top_p', 'min_p', 'repetition_penalty'


class TrainedDecoder(Protocol):
  """What `TfmLM` needs of a loaded model."""

  config: ConfigDict
  model: Decoder
  params: PyTree
  tokenizer: Tokenizer
  mesh: Mesh
  rules: sharding.Rules

  def model_for_generation(self, length: int) -> Decoder:
    """The model whose rotary scaling, if it depends on the text, follows one that grows beyond `length`."""


class TfmLM(TemplateLM):
  """What `tfm.load` or `tfm.from_pretrained` returned, for `lm_eval.simple_evaluate(model=…)`.

  Every text follows the token that begins a text, as in training. Texts beyond `max_length` tokens lose their
  beginning; rolling log-likelihoods read them in consecutive windows. Where the rotary scaling of a published
  model follows the length of the text, each text has the rotations of its own length, as read alone.

  Args:
    run: a decoder with a tokenizer.
    max_length: tokens that the model reads at once; None: those of a training row, config.data.length.
    batch_size: rows scored or generated at once.
    seed: of sampling, for tasks that sample.

  Raises:
    ValueError: for another architecture, a model without a tokenizer, or a `max_length` beyond its positions.
  """

  def __init__(self, run: TrainedDecoder, max_length: int | None = None, batch_size: int = 8, seed: int = 0):
    super().__init__()
    architecture = run.config.model.architecture
    require(
      architecture == 'decoder',
      f'config.model.architecture={architecture!r} has no likelihood of a text; use a decoder',
    )
    require(run.tokenizer is not None, 'the model has no tokenizer, which texts need; import it with its own')
    self.run, self.batch_size, self.seed = run, batch_size, seed
    self.max_length = run.config.data.length if max_length is None else max_length
    require(self.max_length >= 1, f'max_length={max_length} must be at least 1')
    require(batch_size >= 1, f'batch_size={batch_size} must be at least 1')
    for name, limit in loop.list_position_limits(run.model.positions):
      require(
        self.max_length <= limit, f'max_length={self.max_length} exceeds the {limit} positions of {name}'
      )
    self._model_for = functools.cache(run.model_for_generation)  # functions are compiled for a model

  @property
  def eot_token_id(self) -> int:
    return self.run.tokenizer.eos_id

  @property
  def prefix_token_id(self) -> int:
    return self.run.tokenizer.bos_id

  @property
  def tokenizer_name(self) -> str:
    return self.run.config.data.tokenizer

  def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs) -> list[int]:
    """The tokens of a text, after the one that begins it unless `add_special_tokens` is False."""
    beginning = [] if add_special_tokens is False else [self.prefix_token_id]
    return [*beginning, *map(int, self.run.tokenizer.encode(string))]

  def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
    """log p of each text: every token after those before it in its window."""
    windows, owners = [], []
    for i, request in enumerate(requests):
      [text] = request.args
      tokens = self.tok_encode(text, add_special_tokens=False)
      for pair in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1):
        windows.append((('', text), *make_disjoint_window(pair)))
        owners.append(i)
    totals = np.zeros(len(requests))
    scores = [score for score, _ in self._loglikelihood_tokens(windows, disable_tqdm)]
    np.add.at(totals, owners, scores)
    return totals.tolist()

  def _loglikelihood_tokens(
    self,
    requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
    disable_tqdm: bool = False,
    **kwargs,
  ) -> list[tuple[float, bool]]:
    """(log p of the continuation, whether each of its tokens is the most likely one) for each
    (texts, context, continuation)."""
    for (_, text), _, continuation in requests:
      count = len(continuation)
      require(
        count <= self.max_length,
        f'the continuation {text[:40]!r} has {count} tokens, more than max_length={self.max_length}',
      )
    rows = [(context + continuation)[-self.max_length - 1 :] for _, context, continuation in requests]
    results = [(0.0, True)] * len(requests)
    with sharding.context(self.run.mesh, self.run.rules):
      for batch in self._batches(map(len, rows), disable_tqdm):
        losses, is_greedy = self._score([rows[i] for i in batch], [len(requests[i][2]) for i in batch])
        for i, row_losses, row_greedy in zip(batch, losses, is_greedy):
          counted = slice(len(rows[i]) - 1 - len(requests[i][2]), len(rows[i]) - 1)
          results[i] = -float(row_losses[counted].sum(dtype=np.float64)), bool(row_greedy[counted].all())
    return results

  def _score(
    self, rows: Sequence[Sequence[int]], continuations: Sequence[int]
  ) -> tuple[Float[np.ndarray, 'B T'], Bool[np.ndarray, 'B T']]:
    """-log p of every token but the first of each row, and whether it is the most likely one."""
    width, count = loop.round_up(max(map(len, rows)) - 1, 8), loop.round_up_rows(len(rows))
    tokens, targets, segments, prefix = np.zeros((4, count, width), np.int32)
    for i, (row, continuation) in enumerate(zip(rows, continuations)):
      last = len(row) - 1
      tokens[i, :last], targets[i, :last], segments[i, :last] = row[:-1], row[1:], 1
      prefix[i, :last] = last - continuation  # as in generation: the context but its last token
    positions = np.arange(width, dtype=np.int32) * segments  # padding does not lengthen a text
    has_prefix = 'prefix' in self.run.model.required_fields
    context = Context(positions, segments, prefix if has_prefix else None)
    return host_arrays.fetch(score_tokens(self._model_for(1), self.run.params, tokens, targets, context))

  def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
    """What follows each context, up to the first of its stop strings, the end of a text, or max_gen_toks."""
    groups, results, samples, seen = {}, [''] * len(requests), [], collections.Counter()
    for i, request in enumerate(requests):
      groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
      key = json.dumps(request.args, sort_keys=True)
      samples.append(seen[key])  # repeats of a task are samples of their own
      seen[key] += 1
    with sharding.context(self.run.mesh, self.run.rules):
      for indices in groups.values():
        settings = normalize_gen_kwargs(requests[indices[0]].args[1])
        prompts = {i: self.tok_encode(requests[i].args[0]) for i in indices}
        for batch in self._batches(map(len, prompts.values()), disable_tqdm):
          chosen = [indices[j] for j in batch]
          texts = self._continue([prompts[i] for i in chosen], [samples[i] for i in chosen], settings)
          for i, text in zip(chosen, texts):
            results[i] = text
    return results

  def _continue(
    self, prompts: Sequence[list[int]], samples: Sequence[int], settings: Mapping[str, Any]
  ) -> list[str]:
    """The continuations of prompts, whose beginnings are dropped where they are too long."""
    until, max_tokens = settings['until'], settings['max_gen_toks']
    known = {'until', 'max_gen_toks', 'do_sample', *SAMPLING}
    for name in settings:
      require(name in known, f'generation_kwargs.{name} is not supported; {suggest(name, sorted(known))}')
    limits = [limit for _, limit in loop.list_position_limits(self.run.model.positions)]
    room = min([self.max_length, *(loop.count_new_tokens(limit, max_tokens) for limit in limits)])
    prompts = [prompt[-max(room, 1) :] for prompt in prompts]
    chunks = loop.generate(
      disable_scan(self._model_for(max(map(len, prompts)))),
      self._unrolled_params,
      prompts,
      max_tokens=max_tokens,
      eos=self.eot_token_id,
      sampling=Sampling(**{name: settings[name] for name in SAMPLING if name in settings}),
      seed=self.seed,
      samples=samples,
    )
    tokens, texts = [[] for _ in prompts], [''] * len(prompts)
    for new in chunks:
      for row, more in zip(tokens, new):
        row.extend(more)
      texts = [self.run.tokenizer.decode(row) for row in tokens]
      if all(not len(more) or any(stop in text for stop in until) for more, text in zip(new, texts)):
        break
    return [cut_before(text, until) for text in texts]

  @functools.cached_property
  def _unrolled_params(self) -> PyTree:
    return unroll_layers(self.run.model, self.run.params)[1]

  def _batches(self, lengths, is_silent: bool) -> Iterator[Sequence[int]]:
    """The indices of rows that are computed together: those of similar lengths, the longest first; of equal
    lengths, if rotations follow the length of the longest row.
    """
    lengths = [*lengths]
    follows_length = self._model_for(1) is not self.run.model
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = [[*rows] for _, rows in itertools.groupby(order, lambda i: follows_length and lengths[i])]
    size = self.batch_size
    batches = [rows[i : i + size] for rows in groups for i in range(0, len(rows), size)]
    return iter(batches) if is_silent else track(batches, 'lm-eval', len(batches))


@functools.partial(jax.jit, static_argnums=0)
def score_tokens(
  model: Decoder, params: PyTree, tokens: Int[Array, 'B T'], targets: Int[Array, 'B T'], context: Context
) -> tuple[Float[Array, 'B T'], Bool[Array, 'B T']]:
  """-log p of each target in nats, and whether it is the most likely token."""
  logits, _ = model.apply({'params': params}, tokens, context)
  return token_cross_entropy(logits, targets)[0], logits.argmax(-1) == targets


def cut_before(text: str, until: Sequence[str]) -> str:
  """The text before the first of some stop strings."""
  return text[: min([len(text), *(at for stop in until if (at := text.find(stop)) >= 0)])]
