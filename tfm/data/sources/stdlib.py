"""The running Python's standard library as text."""

import dataclasses
import pathlib
import sysconfig
import tokenize
from collections.abc import Iterator

from tfm.data import corpus
from tfm.data.sources import protocol


OUTSIDE = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages'}


@dataclasses.dataclass(frozen=True)
class Stdlib(protocol.Source):
  """The .py files of the standard library, but for tests and installed packages.

  Real text on every machine; 12 MB in some 700 documents. It varies with Python's version and
  build, so compare runs by the corpus's hash.
  """

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    root = pathlib.Path(sysconfig.get_paths()['stdlib'])
    files = sorted(path for path in root.rglob('*.py') if not OUTSIDE & set(path.relative_to(root).parts))
    if not files:
      raise ValueError(
        f'{self.spec} found no .py files under {root}; this Python has no sources, '
        "use another Python or text('…')"
      )

    def read() -> Iterator[corpus.Document]:
      for path in files:
        with path.open('rb') as file:
          encoding, _ = tokenize.detect_encoding(file.readline)
        # By bytes, so that the ends of lines stay as they are.
        yield None, path.read_bytes().decode(encoding.removesuffix('-sig'))

    return corpus.prepare(self.spec, read, cache_dir)
