"""Checks of options at construction; values that may be traced pass."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any


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
