"""How far variants are from published implementations: measured by the tests beside this file, kept in
`differences.json`, listed in docs/reference/variants.md.
"""

import json
import math
import pathlib


PATH = pathlib.Path(__file__).with_suffix('.json')
# (variant, library) → the largest that this session has measured.
measured = {}


def recorded() -> dict[str, dict[str, float]]:
  """'slot/name' of a variant, 'model/name' of a field → library → a power of ten, at least as large as what
  was measured; 0: none.
  """
  return json.loads(PATH.read_text(encoding='utf-8')) if PATH.exists() else {}


def round_up(difference: float) -> float:
  """The next power of ten, so that other machines round to the same number; 0 stays 0."""
  return float(f'1e{math.ceil(math.log10(difference))}') if difference else 0.0


def require_recorded(variant: str, library: str, difference: float) -> None:
  """Fails if the difference is more than twice the recorded one."""
  known = recorded().get(variant, {}).get(library)
  assert known is not None, f'{variant} has no recorded difference from {library}; use --update-golden'
  assert difference <= 2 * known, (
    f'{variant} is {difference:.1e} from {library}, relative to the largest number; recorded: {known:.0e}'
  )


def merge(old: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
  """The recorded differences with those of this session in their place."""
  new = {variant: dict(libraries) for variant, libraries in old.items()}
  for (variant, library), difference in measured.items():
    new.setdefault(variant, {})[library] = round_up(difference)
  return {variant: dict(sorted(new[variant].items())) for variant in sorted(new)}
