"""Names for the kinds of arrays, trees and options that pass between modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

PyTree: TypeAlias = Any
"""A pytree of arrays: parameters, gradients, or a part of an optimizer's state."""

Stacks: TypeAlias = dict[str, jax.Array]
"""Tiles by shape: ``"RxC"`` to an array ``[n, R, C]`` of all tiles of that shape."""

Shape: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = np.dtype
Precision: TypeAlias = jax.lax.PrecisionLike
Scalar: TypeAlias = float | jax.Array
"""A number, which may be traced."""

ScalarOrSchedule: TypeAlias = Scalar | Callable[[Any], jax.typing.ArrayLike]
Matmul: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
Input: TypeAlias = Literal["gradient", "momentum", "nesterov"]
"""What a rule applies its roots to."""

Mask: TypeAlias = PyTree | Callable[[PyTree], PyTree] | None


class Sides(NamedTuple):
    """One square matrix for each side of a tile, or of all tiles of a stack.

    Attributes:
      left: ``[R, R]``, or ``[n, R, R]`` for a stack.
      right: ``[C, C]``, or ``[n, C, C]`` for a stack.
    """

    left: jax.Array
    right: jax.Array
