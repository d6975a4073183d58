"""The equations of a program."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params


def list_equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
  """All equations of a jaxpr, those of its inner ones too."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jaxprs_in_params(equation.params):
      yield from list_equations(inner)
