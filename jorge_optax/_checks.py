"""Checks of options at construction; traced values pass."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jorge_optax._types import Dtype, Input, Precision, Scalar

# Beyond it, sums with the identity would round the gradient away.
LARGEST_SHARE = 1e6


def check_number(
    name: str,
    value: Scalar | None,
    rule: str,
    holds: Callable[[float], bool],
    remedy: str = "",
) -> None:
    """Raises unless a value is a number that obeys a rule.

    Args:
      name: Name of the option.
      value: Value of the option; arrays, traced or not, pass. Booleans do not.
      rule: The rule in words, "must be ...".
      holds: Whether a number obeys the rule.
      remedy: Sentence to end the message with.
    """
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be a number, got {value!r}. {remedy}".rstrip())
    is_bool = isinstance(value, bool | np.bool_)
    if is_bool or (isinstance(value, numbers.Real) and not holds(float(value))):
        raise ValueError(f"{name} {rule}, got {value}. {remedy}".rstrip())


def check_below_one(name: str, value: Scalar, remedy: str = "") -> None:
    """Raises unless a decay rate lies in [0, 1)."""
    check_number(name, value, "must lie in [0, 1)", lambda x: 0 <= x < 1, remedy)


def check_not_negative(name: str, value: Scalar) -> None:
    """Raises unless a value is finite and at least 0."""
    rule = "must be finite and at least 0"
    check_number(name, value, rule, lambda x: 0 <= x < math.inf)


def check_positive(name: str, value: Scalar, remedy: str = "") -> None:
    """Raises unless a value is positive and finite."""
    rule = "must be positive and finite"
    check_number(name, value, rule, lambda x: 0 < x < math.inf, remedy)


def check_count(
    name: str, value: Scalar, at_least: int, also: str = "", remedy: str = ""
) -> None:
    """Raises unless a value is an integer that int32 holds, as counts of steps are."""
    rule = f"must be an integer of at least {at_least}{also}, and below 2**31"

    def holds(x: float) -> bool:
        return at_least <= x < 2**31 and x == int(x)

    check_number(name, value, rule, holds, remedy)


def check_share(name: str, value: Scalar) -> None:
    """Raises unless a value is a reasonable multiple of a matrix's mean diagonal."""
    rule = f"must be finite and at least 0, and at most {LARGEST_SHARE:g}"
    remedy = (
        f"With more than {LARGEST_SHARE:g} times the identity, nothing of the gradient "
        "would be left in float32."
    )
    check_number(name, value, rule, lambda x: 0 <= x <= LARGEST_SHARE, remedy)


def check_coefficients(name: str, values: object, at_least: int) -> tuple[float, ...]:
    """Returns coefficients as a tuple of floats; raises unless they are finite."""
    rule = f"must be at least {at_least} finite number{'s'[: at_least != 1]}"
    try:
        numbers_ = tuple(values)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise TypeError(f"{name} {rule}, got {values!r}.") from error
    if len(numbers_) < at_least or not all(
        isinstance(v, numbers.Real) and math.isfinite(v) for v in numbers_
    ):
        raise ValueError(f"{name} {rule}, got {values!r}.")
    return tuple(map(float, numbers_))


def check_input(name: str, value: str) -> None:
    """Raises unless a value names what a rule preconditions."""
    choices = get_args(Input)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def is_zero(value: Scalar | None) -> bool:
    """Returns whether a value is the number 0, known before tracing."""
    return isinstance(value, numbers.Real) and bool(value == 0)


def canonical_dtype(name: str, value: DTypeLike | None) -> Dtype:
    """Validates and canonicalizes a state dtype."""
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
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"{name}={dtype.name!r} needs jax's 64-bit mode, which is off: call "
            "jax.config.update('jax_enable_x64', True) first, or choose 'float32'."
        )
    return dtype


def canonical_precision(precision: Precision) -> Precision:
    """Validates a precision of matrix products."""
    if not isinstance(precision, str):
        return precision
    try:
        return jax.lax.Precision(precision)
    except ValueError as error:
        raise ValueError(
            f"precision must be one that jax.numpy.matmul takes, got {precision!r}. "
            "Choose 'highest', 'high' or 'default'."
        ) from error
