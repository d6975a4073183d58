"""The names of families that are read from their files are those of the imported families."""

from tfm import variant_folders
from tfm.hf.from_config import load_families
from tfm.hf.model_types import list_model_types, validate_model_type


def test_names_are_those_of_the_families():
  assert sorted(list_model_types()) == sorted(load_families())


def test_families_outside_the_package_are_not_refused(monkeypatch, tmp_path):
  monkeypatch.setattr(variant_folders, 'folders', lambda: (tmp_path,))
  validate_model_type('mine')
