"""Spec strings: `name(literal, key=literal)` selects the variant in the file `name.py` of a slot's folder.

The command line, the log, the config diff and the report all use these strings. A whitelisted walk over
Python's syntax tree parses them, never `eval`. It accepts a call, a bare name, literals, and, where the slot
allows it, the operators `&`, `|` and `~` between specs.

  parse('rope(theta=500)')                        -> Call('rope', (), {'theta': 500})
  build('causal & window(8)', masks, Mask)        -> And(Causal(), Window(8))
  factory('rope', positions, Position, …)         -> partial(Rope, …), which a parent linen module calls
  build_from_table('wsd(decay=0.2)', SCHEDULES)   -> SCHEDULES['wsd'](decay=0.2), for slots that are a table
"""

from tfm.spec.building import (
  bind,
  bind_from_table,
  build,
  build_from_table,
  factory,
  format_signature,
  require_entry,
)
from tfm.spec.ranges import (
  LARGE,
  MAX_COUNT,
  MAX_NUMBER,
  MAX_SIZE,
  Epsilon,
  Fraction,
  NonNegativeFloat,
  NonNegativeInt,
  PositiveFloat,
  PositiveInt,
  Rate,
  Size,
  SizeOrZero,
  format_range,
  format_type,
  matches_type,
  shorten,
  unsuitable_reason,
)
from tfm.spec.syntax import Call, SpecError, list_names, parse
from tfm.spec.variants import find_variant, require_variants, variant_files, variant_names


__all__ = (
  'Call',
  'Epsilon',
  'Fraction',
  'LARGE',
  'MAX_COUNT',
  'MAX_NUMBER',
  'MAX_SIZE',
  'NonNegativeFloat',
  'NonNegativeInt',
  'PositiveFloat',
  'PositiveInt',
  'Rate',
  'Size',
  'SizeOrZero',
  'SpecError',
  'bind',
  'bind_from_table',
  'build',
  'build_from_table',
  'factory',
  'find_variant',
  'format_range',
  'format_signature',
  'format_type',
  'list_names',
  'matches_type',
  'parse',
  'require_entry',
  'require_variants',
  'shorten',
  'unsuitable_reason',
  'variant_files',
  'variant_names',
)
