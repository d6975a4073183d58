"""Reading text files: a byte-order mark, which spreadsheets write, is not text."""

import codecs
import gzip

import pytest

from tfm.data import files


@pytest.mark.parametrize('compress', [lambda data: data, gzip.compress], ids=['plain', 'gzip'])
@pytest.mark.parametrize('text', ['', 'a', 'label\ttext\ngood\tyes\n', '\ufeffinside \ufeff stays'])
def test_a_byte_order_mark_is_dropped(tmp_path, text, compress):
  path = tmp_path / ('x.gz' if compress is gzip.compress else 'x.tsv')
  path.write_bytes(compress(codecs.BOM_UTF8 + text.encode()))
  assert b''.join(files.read_chunks(path)).decode() == text
  path.write_bytes(compress(text.removeprefix('\ufeff').encode()))
  assert b''.join(files.read_chunks(path)).decode() == text.removeprefix('\ufeff')
