"""Both sides of every tile, in as few batches as there are lengths of side.

The refresh of a side needs only its root and its Gram matrix. So all sides of equal
length, left or right, of all stacks, form one batch, and the matrix products are few
and large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._numerics import column, identity_like, split_scales, squared_norms
from jorge_optax._types import PyTree, Scalar, Sides, Stacks


class Side(NamedTuple):
    """One side of the tiles of one stack.

    Attributes:
      stack: Key of the stack.
      name: Which side of the tiles this is.
      gradient: ``[n, m, columns]``, transposed for the right side, divided by scale.
      scale: ``[n]``, powers of two.
      trace: ``[n]``, traces of the Gram matrices of the scaled gradients.
    """

    stack: str
    name: Literal["left", "right"]
    gradient: jax.Array
    scale: jax.Array
    trace: jax.Array

    def of(self, sides: dict[str, Sides]) -> jax.Array:
        """Returns this side's matrices ``[n, m, m]``."""
        return getattr(sides[self.stack], self.name)


def split_sides(gradients: Stacks, roots: dict[str, Sides]) -> list[Side]:
    """Splits each stack into its two sides, in the roots' dtype, float32 at least."""
    wide = [
        gradient.astype(jnp.promote_types(roots[key].left.dtype, jnp.float32))
        for key, gradient in gradients.items()
    ]
    sides = []
    for key, (unit, scale) in zip(gradients, split_scales(wide), strict=True):
        trace = squared_norms(unit)
        sides.append(Side(key, "left", unit, scale, trace))
        sides.append(Side(key, "right", unit.mT, scale, trace))
    return sides


def join_sides(matrices: Iterable[tuple[Side, jax.Array]]) -> dict[str, Sides]:
    """Puts the matrices of both sides of each stack together."""
    found = {(side.stack, side.name): matrix for side, matrix in matrices}
    stacks = [stack for stack, name in found if name == "left"]
    return {key: Sides(found[key, "left"], found[key, "right"]) for key in stacks}


def damp(gram: jax.Array, trace: jax.Array, damping: Scalar) -> jax.Array:
    """Adds ``damping * trace(gram) / m * I`` to each Gram matrix."""
    eye = identity_like(gram)
    return gram + column(damping * trace / eye.shape[-1]) * eye


class BatchBySide:
    """Joins arrays of many sides into one batch for each length of side."""

    def __init__(self) -> None:
        self._members: dict[int, list[tuple[Side, tuple[jax.Array, ...]]]] = {}

    def add(self, side: Side, *arrays: jax.Array) -> None:
        """Adds arrays ``[n, ...]`` of a side, of which the first is ``[n, m, m]``."""
        self._members.setdefault(arrays[0].shape[-1], []).append((side, arrays))

    def batches(self) -> Iterator[list[jax.Array]]:
        """Yields the joined arrays of each batch."""
        for members in self._members.values():
            columns = zip(*(arrays for _, arrays in members), strict=True)
            yield [jnp.concatenate(column) for column in columns]

    def split(self, results: Sequence[PyTree]) -> Iterator[tuple[Side, PyTree]]:
        """Yields each side with its part of what was computed from its batch."""
        for members, result in zip(self._members.values(), results, strict=True):
            start = 0
            for side, arrays in members:
                own = slice(start, start + len(arrays[0]))
                yield side, jax.tree.map(lambda x, own=own: x[own], result)
                start += len(arrays[0])
