"""What is to be told of documents: their labels, numbered in the order of the names that training has, or the
source.
"""

import json
import pathlib

import numpy as np

from tfm.data import cache, progress
from tfm.data import corpus as corpora
from tfm.data.images import Images
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokens import InfiniteDocuments, LabelledTexts, Labels, Tokens, WordLabels, beside


SHOWN = 10  # names in an error


def names(corpus: corpora.Corpus, cache_dir: pathlib.Path) -> tuple[str, ...]:
  """The labels that the source says there are, or else those of the training split, each once, in order."""
  if corpus.classes:
    return corpus.classes

  def write(directory: pathlib.Path):
    labels = corpus.splits['train'][corpus.label]
    found = {
      label
      for text in progress.track(labels, f'reading the labels of {corpus.name}', len(labels))
      for label in _labels(corpus, text)
    }
    (directory / 'names.json').write_text(json.dumps(sorted(found)))

  directory = cache.once(cache_dir / 'classes' / f'{corpus.hash}-{corpus.label}', write)
  return tuple(json.loads((directory / 'names.json').read_text()))


def numbers(corpus: corpora.Corpus, split: str, cache_dir: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """The classes of a split's labels in a row, int32 [N], and where those of each document begin, int64
  [documents + 1].

  Raises:
    ValueError: if there is no such split, or it has a label that training has not: nothing could tell it.
  """
  if split not in corpus.splits:
    raise ValueError(f'{corpus.name} has no split {split!r}; known: {", ".join(corpus.splits)}')

  def write(directory: pathlib.Path):
    number = {name: i for i, name in enumerate(names(corpus, cache_dir))}
    found, offsets, labels = [], [0], corpus.splits[split][corpus.label]
    for text in progress.track(labels, f'reading the labels of {corpus.name} {split}', len(labels)):
      for label in _labels(corpus, text):
        if label not in number:
          known = ', '.join([*number][:SHOWN]) + (', …' if len(number) > SHOWN else '')
          raise ValueError(
            f'{corpus.name} {split} has the label {label!r}, which the training split has not ({known}); '
            'leave such examples out, or move some to the training split'
          )
        found.append(number[label])
      offsets.append(len(found))
    np.save(directory / 'classes.npy', np.array(found, np.int32))
    np.save(directory / 'offsets.npy', np.array(offsets, np.int64))

  directory = cache.once(cache_dir / 'classes' / f'{corpus.hash}-{corpus.label}-{split}', write)
  return np.load(directory / 'classes.npy'), np.load(directory / 'offsets.npy')


def labelled(
  corpus: corpora.Corpus,
  split: str,
  text: Tokens | InfiniteDocuments,
  tokenizer: Tokenizer,
  cache_dir: pathlib.Path,
) -> LabelledTexts:
  """The texts of a split with the classes of each, or of each of its words.

  Raises:
    ValueError: for what `numbers` refuses, and if a text has not as many words as labels.
  """
  words = corpus.label == 'labels'
  if words and not tokenizer.is_lossless:
    raise ValueError(
      f'{tokenizer.identity} changes texts before it cuts them up, so nothing tells where the words of {corpus.name} '
      "begin, which have classes; 'bytes' or 'sentencepiece(8000)' would do"
    )
  if text.documents == corpora.INFINITE:
    labels = corpus.splits[split][corpus.label]
    told = WordLabels(text, labels, corpus.classes) if words else Labels(labels, corpus.classes)
    return LabelledTexts(f'{corpus.name} {split}', text, told, corpus.classes, words)
  found, offsets = numbers(corpus, split, cache_dir)
  if words:
    found = _of_words(corpus, split, text, tokenizer, found, offsets, cache_dir)
  return LabelledTexts(f'{corpus.name} {split}', text, found, names(corpus, cache_dir), words)


def images(corpus: corpora.Corpus, split: str, cache_dir: pathlib.Path) -> Images:
  """The images of a split with the class of each.

  Raises:
    ValueError: for what `numbers` refuses.
  """
  found, _ = numbers(corpus, split, cache_dir)
  return Images(
    f'{corpus.name} {split}', corpus.splits[split][corpora.IMAGE], found, names(corpus, cache_dir)
  )


def _labels(corpus: corpora.Corpus, text: str) -> list[str]:
  return text.split(' ') if corpus.label == 'labels' else [text]


def _of_words(corpus, split, text, tokenizer, classes, offsets, cache_dir) -> np.ndarray:
  """The classes beside the tokens, each at that which holds the first byte of its word; -1 elsewhere."""

  def write(directory: pathlib.Path):
    told = np.zeros(len(text.ids), np.int32)
    texts = corpus.splits[split]['text']
    for d, written in enumerate(progress.track(texts, f'finding the words of {text.name}', len(texts))):
      at = slice(*text.offsets[d : d + 2])
      told[at] = beside(
        written, classes[slice(*offsets[d : d + 2])], tokenizer.token_bytes[text.ids[at]], f'{text.name}[{d}]'
      )
    np.save(directory / 'classes.npy', told)

  name = f'{corpus.hash}-{tokenizer.identity}-{split}-words'
  return np.load(cache.once(cache_dir / 'classes' / name, write) / 'classes.npy', mmap_mode='r')
