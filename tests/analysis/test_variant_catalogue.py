"""The generated table is current, and says no more than is so."""

import pytest

from tfm.analysis import variant_catalogue
from tfm.conformance import collect


@pytest.mark.slow
@pytest.mark.parametrize('slot', variant_catalogue.SLOTS)
def test_it_holds_every_file(slot):
  assert [variant.name for variant in variant_catalogue.variants(slot)] == list(collect.variants(slot))


@pytest.mark.parametrize('name', collect.variants('mixer'))
def test_a_mixer_decodes_if_it_says_so(name):
  variant = variant_catalogue.Variant('mixer', name)
  assert variant_catalogue.supports_cache(variant) == variant.kind.supports_decoding


def test_a_kernel_that_refuses_is_not_listed(monkeypatch):
  from tfm.kernels.chunked import Chunked

  monkeypatch.setattr(Chunked, 'unsupported_reason', lambda *args: 'not today')
  assert variant_catalogue.kernels(variant_catalogue.Variant('mask', 'causal'))['chunked'] == 'not today'
  assert variant_catalogue.kernels(variant_catalogue.Variant('mask', 'causal'))['dense'] is None
