"""Both sides of every tile, in as few batches as there are lengths of side.

A refresh needs of a side only its root and its Gram matrix. So all sides of equal
length, left or right, of all stacks, form one batch, and their matrix products are few
and large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax import _algorithm
from jorge_optax._numerics import split_scales
from jorge_optax._types import Dtype, Precision, PyTree, Scalar, Sides, Stacks

Groups = dict[Any, list[jax.Array]]
"""Arrays ``[n, ...]`` of many sides, joined into one batch a key."""


class Side(NamedTuple):
    """One side of the tiles of one stack.

    Attributes:
      stack: Key of the stack.
      name: Which side of the tiles this is.
      root: ``[n, m, m]``.
      gradient: ``[n, m, columns]``, transposed for the right side, divided by scale.
      scale: ``[n]``, powers of two.
      trace: ``[n]``, squared norms of the scaled gradients.
      usable: ``[n, 1, 1]``, whether the gradient is finite and not zero.
    """

    stack: str
    name: Literal["left", "right"]
    root: jax.Array
    gradient: jax.Array
    scale: jax.Array
    trace: jax.Array
    usable: jax.Array


def start_roots(
    tiles: dict[str, jax.ShapeDtypeStruct], eps: Scalar, dtype: Dtype
) -> dict[str, Sides]:
    """Starts both roots of every tile as the paper does (line 1)."""
    roots = {}
    for key, (n, rows, columns) in ((k, tile.shape) for k, tile in tiles.items()):
        left, right = (_algorithm.initial_root(m, eps, dtype) for m in (rows, columns))
        roots[key] = Sides(jnp.tile(left, (n, 1, 1)), jnp.tile(right, (n, 1, 1)))
    return roots


def apply_roots(
    roots: dict[str, Sides], matrices: Stacks, precision: Precision
) -> Stacks:
    """Multiplies every tile by its roots from both sides (line 11)."""
    matmul = functools.partial(jnp.matmul, precision=precision)
    apply = jax.vmap(functools.partial(_algorithm.precondition, matmul=matmul))
    directions = {}
    for key, tiles in matrices.items():
        left, right = (root.astype(tiles.dtype) for root in roots[key])
        directions[key] = apply(left, tiles, right)
    return directions


def split_sides(gradients: Stacks, roots: dict[str, Sides]) -> list[Side]:
    """Splits each stack into its two sides, in the roots' dtype, float32 at least."""
    wide = [
        gradient.astype(jnp.promote_types(roots[key].left.dtype, jnp.float32))
        for key, gradient in gradients.items()
    ]
    sides = []
    for key, (unit, scale) in zip(gradients, split_scales(wide), strict=True):
        trace = jnp.sum(jnp.square(unit), (1, 2))
        usable = (jnp.isfinite(trace) & (trace > 0))[:, None, None]
        left, right = roots[key]
        sides.append(Side(key, "left", left, unit, scale, trace, usable))
        sides.append(Side(key, "right", right, unit.mT, scale, trace, usable))
    return sides


def join_sides(
    sides: Sequence[Side], matrices: Sequence[jax.Array]
) -> dict[str, Sides]:
    """Puts the matrices of both sides of each stack together; undoes the split."""
    lefts = zip(sides[::2], matrices[::2], matrices[1::2], strict=True)
    return {side.stack: Sides(left, right) for side, left, right in lefts}


def map_batches(
    function: Callable[[Groups], Sequence[PyTree]],
    items: Sequence[Sequence[jax.Array]],
    keys: Sequence[Hashable],
) -> list[PyTree]:
    """Applies a function to items joined into batches.

    Args:
      function: Takes the batches by key, each a list of arrays, and returns what it
        computes from each batch, trees of arrays with the batch's first axis.
      items: Arrays ``[n, ...]`` of each item.
      keys: Items with equal keys are joined.

    Returns:
      For each item, its part of what was computed from its batch.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    batches = {
        key: [jnp.concatenate(x) for x in zip(*(items[i] for i in group), strict=True)]
        for key, group in groups.items()
    }
    results: list[PyTree] = [None] * len(items)
    for group, result in zip(groups.values(), function(batches), strict=True):
        start = 0
        for i in group:
            own = slice(start, start + len(items[i][0]))
            results[i] = jax.tree.map(lambda x, own=own: x[own], result)
            start += len(items[i][0])
    return results


def damp(gram: jax.Array, trace: jax.Array, damping: Scalar) -> jax.Array:
    """Adds ``damping * trace(gram) / m * I`` to each Gram matrix."""
    side = gram.shape[-1]
    eye = jnp.eye(side, dtype=gram.dtype)[None]
    return gram + (damping * trace / side)[:, None, None] * eye
