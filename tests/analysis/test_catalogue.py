"""The generated table is current, and says no more than is so."""

import pytest

from tests.conformance import collect
from tfm.analysis import catalogue


@pytest.mark.slow
def test_the_table_of_the_docs_is_current(root):
  written = (root / 'docs' / 'variants.md').read_text()
  assert written == catalogue.format_markdown(), 'renew it with: tfm variants > docs/variants.md'


@pytest.mark.parametrize('slot', catalogue.SLOTS)
def test_it_holds_every_file(slot):
  assert [variant.name for variant in catalogue.variants(slot)] == list(collect.variants(slot))


@pytest.mark.parametrize('name', collect.variants('mixer'))
def test_a_mixer_decodes_if_it_says_so(name):
  variant = catalogue.Variant('mixer', name)
  assert catalogue.supports_cache(variant) == variant.kind.supports_decoding


def test_a_kernel_that_refuses_is_not_listed(monkeypatch):
  from tfm.kernels.chunked import Chunked

  monkeypatch.setattr(Chunked, 'unsupported_reason', lambda *args: 'not today')
  assert catalogue.kernels(catalogue.Variant('mask', 'causal'))['chunked'] == 'not today'
  assert catalogue.kernels(catalogue.Variant('mask', 'causal'))['dense'] is None
