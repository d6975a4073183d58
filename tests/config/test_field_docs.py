"""Every field of a config says what it means, once: in the comment beside it."""

import pytest

from tfm.config import field_docs, schema


PATHS = [path for path, _ in schema.leaves(schema.default_config())]


@pytest.mark.parametrize('path', PATHS)
def test_every_field_is_described(path):
  assert field_docs.describe_field(path), f'write a comment beside {path} in tfm/config/schema.py'


def test_where_comments_stand():
  descriptions = {path: field_docs.describe_field(path) for path in PATHS}
  assert descriptions['model.layers'].startswith('in an encoder-decoder')  # above
  assert descriptions['model.width'].startswith('D, ')  # at the end of the line
  assert descriptions['rules.batch'] == descriptions['rules.layers']  # of the section
  assert descriptions['mesh.data'] == descriptions['mesh.stage'] != descriptions['slices.count']
  assert set(field_docs.field_comments()) <= {
    '.'.join(path.split('.')[:n]) for path in PATHS for n in range(1, 4)
  } | {'data.sources', 'model.blocks', 'model.encoder', 'model.cross'}
