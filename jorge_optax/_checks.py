"""Checks of options at construction; values that may be traced pass."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def check_number(
    name: str, value: Any, rule: str, holds: Callable[[Any], bool], remedy: str = ""
) -> None:
    """Raises if a concrete value is no number, or not one that the rule admits.

    Args:
      name: of the option.
      value: of the option; arrays, traced or not, pass.
      rule: in words, "must be ...".
      holds: whether a number obeys the rule.
      remedy: a sentence to end the message.
    """
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be a number, got {value!r}. {remedy}".rstrip())
    if isinstance(value, numbers.Real) and not holds(value):
        raise ValueError(f"{name} {rule}, got {value}. {remedy}".rstrip())


def is_zero(value: Any) -> bool:
    """Whether a value is the number 0, known before tracing."""
    return isinstance(value, numbers.Real) and value == 0


def canonical_dtype(name: str, value: Any) -> Any:
    """The dtype that a state is kept in; raises if it is none for that."""
    choose = "Choose 'float32', 'bfloat16' or 'float64'."
    try:
        dtype = jnp.dtype("no dtype" if value is None else value)
    except TypeError as error:
        raise ValueError(
            f"{name} must name a floating-point dtype, got {value!r}. {choose}"
        ) from error
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).nexp < 8:
        raise ValueError(
            f"{name} must be a floating-point dtype with float32's range of exponents, "
            f"got {dtype}: roots and momenta may be as small or large as gradients "
            f"are. {choose}"
        )
    return jax.dtypes.canonicalize_dtype(dtype)
