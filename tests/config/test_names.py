"""Names that fields may have are read without importing what has them: they are those that it has."""

import importlib

import pytest

from tfm.config.assemble import Experiment
from tfm.config.names import FromSlot, FromSources, FromTable, OneOf, table_names
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import TABLES as NAMED_SECTIONS
from tfm.config.schema import checked_fields
from tfm.variant_folders import slot_folders


FIELDS = checked_fields() | NAMED_SECTIONS
TABLES = {field[1] for field in FIELDS.values() if isinstance(field, (FromTable, OneOf))}


@pytest.mark.parametrize('table', sorted(table for table in TABLES if isinstance(table, str)))
def test_names_of_a_table_are_those_of_the_imported_one(table):
  module, _, name = table.partition(':')
  imported = getattr(importlib.import_module(f'tfm.{module}'), name)
  assert table_names(table) == tuple(imported)


def test_slots_of_fields_are_the_slots_that_have_variants():
  slots = {
    field.slot.replace('.', '/') for field in FIELDS.values() if isinstance(field, (FromSlot, FromSources))
  }
  assert slots == {*slot_folders()} - {'studies/measures', 'hf/families', 'exports'}


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(model=dict(position='ropee')), "model.position='ropee' names 'ropee'.*did you mean 'rope'"),
    (dict(model=dict(mask='causal & ~windw(2)')), "names 'windw', which masks.*did you mean 'window'"),
    (dict(model=dict(pattern=('a',), blocks=dict(a=dict(mixer='sofmax')))), "blocks.a.mixer='sofmax' names"),
    (dict(data=dict(sources=dict(a='txt("x")'))), "data.sources.a='txt.*did you mean 'text'"),
    (dict(data=dict(source='plays/a.txt')), r"source='plays/a.txt' is a path, not a source; use text\("),
    (dict(training=dict(sinks=('wandb', 'tensorbord'))), "sinks='tensorbord' .*did you mean 'tensorboard'"),
    (dict(optimizer=dict(schedule='cosin')), "schedule='cosin' names 'cosin'.*did you mean 'cosine'"),
    (dict(training=dict(save_every='5')), r"save_every='5' has no name; use steps\(5\)"),
    (dict(model=dict(dtype='float33')), "dtype='float33' is unknown; known: float32, bfloat16, float16"),
    (dict(model=dict(score='dot(')), r"score='dot\(' is not a spec"),
  ],
)
def test_a_mistyped_name_is_refused_with_its_field_and_the_names_that_exist(fields, message):
  with pytest.raises(ValueError, match=message):
    Experiment(resolve_config(complete(fields))).save_intervals
