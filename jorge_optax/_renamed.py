"""Says what has replaced an argument that a function no longer has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function refuse former arguments with what to write instead."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def refuse_former(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() & instead.keys():
                raise TypeError(
                    f"{function.__name__} has no argument {name} any more: write "
                    f"{instead[name]}."
                )
            return function(*args, **kwargs)

        return refuse_former

    return decorate
