"""The classes of documents: their labels, numbered in the order of the class names."""

import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from tfm.data import cache, progress_bar
from tfm.data.corpus import Corpus
from tfm.data.documents import IMAGE, INFINITE
from tfm.data.images import CaptionedImages, Images
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokens import InfiniteDocuments, LabelledTexts, Labels, Tokens, WordLabels, align_word_labels
from tfm.shapes import Int


MAX_NAMES_SHOWN = 10  # in an error


def class_names(corpus: Corpus, cache_dir: pathlib.Path) -> tuple[str, ...]:
  """Returns the class names that the source defines, or the sorted labels of the training split."""
  if corpus.classes:
    return corpus.classes

  def write(directory: pathlib.Path):
    column = corpus.splits['train'][corpus.label_field]
    labels = {
      label
      for text in progress_bar.track(column, f'reading the labels of {corpus.name}', len(column))
      for label in _split_labels(corpus, text)
    }
    (directory / 'names.json').write_text(json.dumps(sorted(labels)), encoding='utf-8')

  directory = cache.create_once(cache_dir / 'classes' / f'{corpus.hash}-{corpus.label_field}', write)
  return tuple(json.loads((directory / 'names.json').read_text(encoding='utf-8')))


def class_ids(corpus: Corpus, split: str, cache_dir: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Returns the classes of a split's labels, int32 [N], and the offsets of each document, int64 [documents +
  1].

  Raises:
    ValueError: if the split does not exist, or has a label that the training split does not have.
  """
  if split not in corpus.splits:
    raise ValueError(f'{corpus.name} has no split {split!r}; known: {", ".join(corpus.splits)}')

  def write(directory: pathlib.Path):
    id_of = {name: i for i, name in enumerate(class_names(corpus, cache_dir))}
    ids, offsets, column = [], [0], corpus.splits[split][corpus.label_field]
    for text in progress_bar.track(column, f'reading the labels of {corpus.name} {split}', len(column)):
      for label in _split_labels(corpus, text):
        if label not in id_of:
          known = ', '.join([*id_of][:MAX_NAMES_SHOWN]) + (', …' if len(id_of) > MAX_NAMES_SHOWN else '')
          raise ValueError(
            f'{corpus.name} {split} has the label {label!r}, which the training split does not have '
            f'({known}); remove such examples, or move some to the training split'
          )
        ids.append(id_of[label])
      offsets.append(len(ids))
    np.save(directory / 'classes.npy', np.array(ids, np.int32))
    np.save(directory / 'offsets.npy', np.array(offsets, np.int64))

  directory = cache.create_once(cache_dir / 'classes' / f'{corpus.hash}-{corpus.label_field}-{split}', write)
  return np.load(directory / 'classes.npy'), np.load(directory / 'offsets.npy')


def load_labelled_texts(
  corpus: Corpus, split: str, text: Tokens | InfiniteDocuments, tokenizer: Tokenizer, cache_dir: pathlib.Path
) -> LabelledTexts:
  """Returns the texts of a split with the class of each text, or of each word.

  Raises:
    ValueError: as `class_ids`, and if the numbers of words and labels of a text differ.
  """
  name, has_word_labels = f'{corpus.name} {split}', corpus.label_field == 'labels'
  if has_word_labels and not tokenizer.is_lossless:
    raise ValueError(
      f'{tokenizer.identity} normalizes texts, so the words of {corpus.name}, which have labels, cannot be '
      "located in its tokens; use 'bytes' or 'sentencepiece(8000)'"
    )
  if text.documents == INFINITE:
    labels = corpus.splits[split][corpus.label_field]
    classes = WordLabels(text, labels, corpus.classes) if has_word_labels else Labels(labels, corpus.classes)
    return LabelledTexts(name, text, classes, corpus.classes, has_word_labels)
  classes, offsets = class_ids(corpus, split, cache_dir)
  if has_word_labels:

    def align(d, document):
      labels, tokens = classes_of_words[slice(*offsets[d : d + 2])], text.ids[slice(*text.offsets[d : d + 2])]
      return align_word_labels(document, labels, tokenizer.token_bytes[tokens], f'{text.name}[{d}]')

    classes_of_words, key = classes, f'{corpus.hash}-{tokenizer.identity}-{split}-words'
    classes = _load_word_labels(text, corpus.splits[split]['text'], align, cache_dir / 'classes' / key)
  return LabelledTexts(name, text, classes, class_names(corpus, cache_dir), has_word_labels)


def load_images(corpus: Corpus, split: str, cache_dir: pathlib.Path) -> Images:
  """Returns the images of a split with the class of each.

  Raises:
    ValueError: as `class_ids`.
  """
  classes, _ = class_ids(corpus, split, cache_dir)
  names = class_names(corpus, cache_dir)
  return Images(f'{corpus.name} {split}', corpus.splits[split][IMAGE], classes, names)


def load_captioned_images(
  corpus: Corpus, split: str, text: Tokens, cache_dir: pathlib.Path
) -> CaptionedImages:
  """Returns the images of a split with the class and the text of each; raises as `class_ids`."""
  images = load_images(corpus, split, cache_dir)
  return CaptionedImages(images.name, images.images, images.classes, images.names, text)


def _split_labels(corpus: Corpus, text: str) -> list[str]:
  return text.split(' ') if corpus.label_field == 'labels' else [text]


def _load_word_labels(
  text: Tokens,
  documents: Sequence[str],
  align: Callable[[int, str], Int[np.ndarray, 'T']],
  directory: pathlib.Path,
) -> Int[np.ndarray, 'N']:
  """Returns the class of each token of a split from the cache, which `align` fills document by document."""

  def write(directory: pathlib.Path):
    aligned = np.zeros(len(text.ids), np.int32)
    description = f'locating the words of {text.name}'
    for d, document in enumerate(progress_bar.track(documents, description, len(documents))):
      aligned[slice(*text.offsets[d : d + 2])] = align(d, document)
    np.save(directory / 'classes.npy', aligned)

  return np.load(cache.create_once(directory, write) / 'classes.npy', mmap_mode='r')
