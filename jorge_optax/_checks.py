"""Checks of options at construction; traced values pass."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import DTypeLike

from jorge_optax._types import (
    Dtype,
    Input,
    Mask,
    Precision,
    PyTree,
    Scalar,
    ScalarOrSchedule,
)

# Numbers that optax.inject_hyperparams can make a schedule of.
INJECTED = ("momentum", "weight_decay", "eps", "damping")
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
    if callable(value):
        inject = f"optax.inject_hyperparams(jorge)(..., {name}=schedule)"
        raise TypeError(
            f"{name} must be a number, got a function, {value!r}. Pass a number"
            + (f"; for a schedule of it, {inject}." if name in INJECTED else ".")
        )
    if not (isinstance(value, numbers.Real) or hasattr(value, "dtype")):
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
    rule = f"must be an integer of at least {at_least} and below 2**31{also}"

    def holds(x: float) -> bool:
        return at_least <= x < 2**31 and x == int(x)

    check_number(name, value, rule, holds, remedy)


def check_learning_rate(value: ScalarOrSchedule | None) -> None:
    """Raises unless a learning rate is a number or a schedule, and not negative."""
    name, kinds = "learning_rate", "must be a number or a schedule"
    if isinstance(value, optax.GradientTransformation):
        raise TypeError(
            f"{name} {kinds}, got an optax transformation. Pass the arguments that it "
            "was made with: for optax.sgd(0.1, momentum=0.9), from_sgd(0.1, "
            "momentum=0.9, weight_decay=...); for optax.adamw(1e-3), from_adamw(1e-3)."
        )
    if isinstance(value, bool) or not (
        callable(value) or isinstance(value, numbers.Real) or hasattr(value, "dtype")
    ):
        raise TypeError(f"{name} {kinds}, got {value!r}. Pass that of a tuned SGD run.")
    rule = "must be finite and at least 0"
    remedy = (
        "Pass that of a tuned SGD run: jorge subtracts its steps, as optax.sgd does."
    )
    _check_at(name, value, (0,), rule, lambda x: 0 <= x < math.inf, remedy)


def check_interval(value: ScalarOrSchedule) -> None:
    """Raises unless an interval is a count of steps, or a schedule of such counts."""
    name = "update_interval"
    if not callable(value):
        refreshed = (
            "The roots are refreshed every update_interval steps: pass 1 to refresh "
            "them at every step, a large number to refresh them rarely."
        )
        check_count(name, value, 1, ", or a schedule of the step", refreshed)
        return
    remedy = (
        "It counts the steps between refreshes and is not a learning-rate schedule: "
        "pass a number, or a schedule such as growing_interval_schedule(50)."
    )
    rule = "must be at least 1 at every step"
    _check_at(name, value, (0, 1000, 10**6), rule, lambda x: 1 <= x < 2**31, remedy)


def _check_at(
    name: str,
    value: ScalarOrSchedule | None,
    steps: tuple[int, ...],
    rule: str,
    holds: Callable[[float], bool],
    remedy: str,
) -> None:
    """Raises unless a number, or a schedule at these steps, obeys a rule."""
    if not callable(value):
        check_number(name, value, rule, holds, remedy)
        return
    for step in steps:
        number = _call_schedule(name, value, step)
        if number is not None and not holds(number):
            raise ValueError(
                f"{name} {rule}, got {number:.7g} at step {step} of its schedule. "
                f"{remedy}"
            )


def _call_schedule(
    name: str, schedule: Callable[..., PyTree], step: int
) -> float | None:
    """Returns a schedule's value at a step; None if that depends on traced values."""
    must = (
        f"{name} must be a number or a schedule, a function of the step that returns "
        "one number"
    )
    try:
        with jax.ensure_compile_time_eval():
            value = schedule(jnp.asarray(step, jnp.int32))
    except Exception as error:
        raise TypeError(
            f"{must}, got {schedule!r}: calling it with step {step} failed with "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(value, Tracer):
        return None
    try:
        return float(np.asarray(value, np.float64).reshape(()))
    except (TypeError, ValueError) as error:
        found = getattr(value, "shape", None)
        text = repr(value) if found is None else f"an array of shape {found}"
        raise TypeError(
            f"{must}, got {schedule!r}, which returns {text} at step {step}."
        ) from error


def check_mask(mask: Mask) -> None:
    """Raises unless a mask of the decay is None, a function or a tree of booleans."""
    if mask is not None and not callable(mask):
        check_booleans(mask)


def check_booleans(mask: PyTree, *, alone: bool = False) -> None:
    """Raises unless a mask is a tree of booleans; ``alone`` allows a single one."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(mask)[0]:
        is_bool = isinstance(leaf, bool | np.bool_) or (
            getattr(leaf, "dtype", None) == np.dtype("bool") and jnp.ndim(leaf) == 0
        )
        if is_bool and (path or alone):
            continue
        # inject_hyperparams calls the mask with the step, and passes what it returns.
        inject = (
            "optax.inject_hyperparams takes a function for a schedule: give it "
            "static_args=('weight_decay_mask',). "
        )
        raise TypeError(
            "weight_decay_mask must be a tree of booleans like the parameters, or a "
            f"function of the parameters that returns one, got {leaf!r}"
            + (f" at {jax.tree_util.keystr(path)}" if path else "")
            + f". {inject if is_bool else ''}To decay matrices and kernels only, pass "
            "lambda params: jax.tree.map(lambda p: p.ndim > 1, params)."
        )


def check_share(name: str, value: Scalar) -> None:
    """Raises unless a value is a reasonable multiple of a matrix's mean diagonal."""
    rule = f"must be finite and at least 0, and at most {LARGEST_SHARE:g}"
    remedy = (
        f"With more than {LARGEST_SHARE:g} times the identity, nothing of the gradient "
        "would be left in float32."
    )
    check_number(name, value, rule, lambda x: 0 <= x <= LARGEST_SHARE, remedy)


def check_flag(name: str, value: object) -> None:
    """Raises unless a value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}.")


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


def as_float(value: Any) -> Any:
    """Returns Python's and NumPy's numbers as floats, all else unchanged.

    jax makes an int32 of an integer, which overflows from ``2**31`` on: with an error
    if the integer is Python's, and silently if it is NumPy's.
    """
    return float(value) if isinstance(value, numbers.Real) else value


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


def canonical_precision(precision: Precision, name: str = "precision") -> Precision:
    """Validates a precision of matrix products."""
    if not isinstance(precision, str):
        return precision
    try:
        return jax.lax.Precision(precision)
    except ValueError as error:
        raise ValueError(
            f"{name} must be one that jax.numpy.matmul takes, got {precision!r}. "
            "Choose 'highest', 'high' or 'default'."
        ) from error
