"""The running Python's standard library as text."""

import dataclasses
import functools
import pathlib
import sysconfig
import tokenize
from collections.abc import Iterator

from tfm.data.corpus import RawDocuments
from tfm.data.documents import Document
from tfm.data.sources import protocol


EXCLUDED = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages'}


@dataclasses.dataclass(frozen=True)
class Stdlib(protocol.StoredSource):
  """The .py files of the standard library, without tests and installed packages.

  This is real text on every machine: 12 MB in about 700 documents. It depends on Python's version and
  build, so compare runs by the hash of the corpus.
  """

  def raw_documents(self) -> RawDocuments:
    root = pathlib.Path(sysconfig.get_paths()['stdlib'])
    files = sorted(path for path in root.rglob('*.py') if not EXCLUDED & set(path.relative_to(root).parts))
    if not files:
      raise ValueError(
        f'{self.spec}: there are no .py files under {root}, so this Python has no sources; '
        "use another Python or text('…')"
      )

    return RawDocuments(self.spec, [functools.partial(_read, path) for path in files])


def _read(path: pathlib.Path) -> Iterator[Document]:
  with path.open('rb') as file:
    encoding, _ = tokenize.detect_encoding(file.readline)
  # From bytes, so that line ends are preserved.
  yield None, path.read_bytes().decode(encoding.removesuffix('-sig'))
