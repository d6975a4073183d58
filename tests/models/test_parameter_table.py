"""The parameter table."""

import jax
import jax.numpy as jnp
import pytest

from tfm.conformance import tiny
from tfm.models import parameter_table
from tfm.parallel.sharding import parse_rules


def test_a_row_describes_its_parameter():
  boxed = tiny.boxed(tiny.decoder())
  rules = parse_rules(dict(embed='data fsdp', heads='tensor'))
  rows = {'/'.join(row.path): row for row in parameter_table.rows(boxed, rules)}
  row = rows['stack/layers/block_0/mixer/q/kernel']
  assert str(row) == (
    'stack/layers/block_0/mixer/q/kernel  2×16×4×4  float32  layers embed heads kv  normal(0.02)'
  )
  assert row.spec == ('-', 'data+fsdp', 'tensor', '-')
  assert row.count == 2 * 16 * 4 * 4
  assert sum(row.count for row in rows.values()) == sum(x.size for x in jax.tree.leaves(boxed))


def test_a_parameter_without_axes_is_named():
  with pytest.raises(ValueError, match='mixer/gate has no logical axes'):
    parameter_table.rows({'mixer': {'gate': jax.ShapeDtypeStruct((2,), jnp.float32)}})


@pytest.mark.parametrize(
  'path, kind',
  [
    ('stack/layers/block_0/mixer/q', 'mixer'),
    ('stack/rest/block_11/mixer/position', 'mixer'),
    ('stack/layers_3/block_0/feed_forward_norm', 'norm'),
    ('stack/layers/block_1/mixer_norm_after', 'norm'),
    ('stack/layers/block_0/feed_forward/down', 'feed_forward'),
    ('stack/layers/block_0/norm', 'norm'),
    ('norm', 'norm'),
    ('embedding', 'embedding'),
    ('position_1', 'position'),
    ('', 'other'),
  ],
)
def test_kind(path, kind):
  assert parameter_table.kind([name for name in path.split('/') if name]) == kind
