"""The fields of a config whose values can be drawn, and which of them a spec is of. JAX is not needed."""

from tfm import spec
from tfm.config.schema import checked_fields
from tfm.errors import require, suggest


FIELDS = 'model.mask', 'model.position', 'optimizer.schedule'


def find_field(text: str) -> str:
  """The path of the field whose variants a spec names.

  Raises:
    ValueError: for a name that none of the fields has, or names of several fields.
  """
  names, known = spec.list_names(text), {path: checked_fields()[path].list_names() for path in FIELDS}
  matching = [path for path, of_field in known.items() if {*names} <= {*of_field}]
  if len(matching) == 1:
    return matching[0]
  fields = ', '.join(f'config.{path}' for path in matching or FIELDS)
  require(not matching, f'{text!r} fits several fields: {fields}; rename your variant')
  every = [name for of_field in known.values() for name in of_field]
  for name in names:
    require(name in every, f'{text!r} names {name!r}, which none of {fields} has; {suggest(name, every)}')
  raise ValueError(f'{text!r} combines variants of several fields; draw them one by one')
