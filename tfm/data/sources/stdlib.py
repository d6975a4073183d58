"""The running Python's standard library as text."""

import dataclasses
import pathlib
import sysconfig
import tokenize
from collections.abc import Iterator

from tfm.data.corpus import Corpus, prepare_corpus
from tfm.data.documents import Document
from tfm.data.sources import protocol


EXCLUDED = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages'}


@dataclasses.dataclass(frozen=True)
class Stdlib(protocol.Source):
  """The .py files of the standard library, without tests and installed packages.

  This is real text on every machine: 12 MB in about 700 documents. It depends on Python's version and
  build, so compare runs by the hash of the corpus.
  """

  def prepare(self, cache_dir: pathlib.Path) -> Corpus:
    root = pathlib.Path(sysconfig.get_paths()['stdlib'])
    files = sorted(path for path in root.rglob('*.py') if not EXCLUDED & set(path.relative_to(root).parts))
    if not files:
      raise ValueError(
        f'{self.spec}: there are no .py files under {root}, so this Python has no sources; '
        "use another Python or text('…')"
      )

    def read() -> Iterator[Document]:
      for path in files:
        with path.open('rb') as file:
          encoding, _ = tokenize.detect_encoding(file.readline)
        # From bytes, so that line ends are preserved.
        yield None, path.read_bytes().decode(encoding.removesuffix('-sig'))

    return prepare_corpus(self.spec, read, cache_dir)
