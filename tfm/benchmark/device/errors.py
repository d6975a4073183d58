"""Whether kernels compute on this device what the specification computes in float32: relative errors."""

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tfm.benchmark.attention import VARIANTS, Shape, make_kernel, make_mixer
from tfm.shapes import PyTree


def kernel(kernel: str, dtype: str, length: int, **shape: int) -> dict[str, float]:
  """Errors of a kernel against `dense` by variant, of those that it supports, and the worst."""

  def measure(variant: str) -> float | ValueError:
    exact, _ = make_kernel('dense', variant, length, Shape(dtype='float32', **shape))
    try:
      run, arguments = make_kernel(kernel, variant, length, Shape(dtype=dtype, **shape))
      return error_against(exact, run, arguments)
    except ValueError as refusal:
      return refusal

  with concurrent.futures.ThreadPoolExecutor() as pool:  # most of the time is that of the compiler
    found = dict(zip(VARIANTS, pool.map(measure, VARIANTS)))
  errors = {variant: error for variant, error in found.items() if isinstance(error, float)}
  if not errors:
    raise found['causal']
  return dict(worst=max(errors.values()), **errors)


def mixer(fields: Mapping[str, str], exact: Mapping[str, str], length: int, **shape: int) -> dict[str, float]:
  """The error of a mixer in bfloat16 against the one with the fields `exact` in float32."""
  run, arguments = make_mixer(fields, length, Shape(dtype='bfloat16', **shape))
  return dict(
    worst=error_against(make_mixer(exact, length, Shape(dtype='float32', **shape))[0], run, arguments)
  )


def error_against(exact: Callable, run: Callable, arguments: tuple) -> float:
  """The larger error, ‖x − exact x‖ / ‖exact x‖, of the output and of the gradients of all arguments."""

  def outputs(f: Callable, arguments: tuple) -> PyTree:
    out = f(*arguments)
    weights = jax.random.normal(jax.random.key(9), out.shape, jnp.float32)
    loss = lambda *arguments: (f(*arguments).astype(jnp.float32) * weights).sum()  # noqa: E731
    return out, jax.grad(loss, tuple(range(len(arguments))))(*arguments)

  def compute(f: Callable, dtype: Any) -> PyTree:
    cast = jax.tree.map(lambda x: x if dtype is None else x.astype(dtype), arguments)
    return jax.tree.map(lambda x: x.astype(jnp.float32), jax.jit(lambda *a: outputs(f, a))(*cast))

  with jax.default_matmul_precision('highest'):  # of this thread
    expected = compute(exact, jnp.float32)
  found = compute(run, None)
  norms = jax.tree.map(
    lambda x, y: float(jnp.linalg.norm(jnp.ravel(x - y)) / jnp.linalg.norm(jnp.ravel(y))), found, expected
  )
  return max(jax.tree.leaves(norms))
