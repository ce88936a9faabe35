"""Refreshes all roots of all stacks in as few, as large, matrix products as possible.

The kernel needs only a root and a gram matrix, so all sides of equal length, left or
right, of all stacks, are joined into one batch. Only where a stack's tall tiles would
save much by the order of products without a gram are they refreshed by themselves.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jorge_optax._checks import is_zero
from jorge_optax._roots import Roots, candidate_root, refresh_root_thin, split_scale
from jorge_optax._stacks import Stacks

# A stack's side is refreshed without its gram where that saves at least this share of
# all multiplications of a refresh.
WORTH_ITS_OWN_ORDER = 0.01


def gram_multiplications(m: int, n: int) -> int:
    """Scalar multiplications to refresh the side m of an m x n tile by its gram."""
    return m * m * n + 5 * m**3


def thin_multiplications(m: int, n: int) -> int:
    """The same by the order of products without a gram."""
    return 7 * m * m * n + 2 * m * n * n


@functools.lru_cache(maxsize=256)
def thin_stacks(shapes: frozenset[tuple[int, int, int]]) -> frozenset[tuple[int, int]]:
    """The tile shapes whose long side is refreshed without a gram.

    Args:
      shapes: number, rows and columns of the tiles of each stack.

    Returns:
      Rows and columns of the tiles concerned.
    """
    total = 0
    saved = {}
    for n, rows, columns in shapes:
        long, short = max(rows, columns), min(rows, columns)
        by_gram = gram_multiplications(long, short)
        total += n * (by_gram + gram_multiplications(short, long))
        saved[rows, columns] = n * (by_gram - thin_multiplications(long, short))
    return frozenset(
        tile for tile, less in saved.items() if less >= WORTH_ITS_OWN_ORDER * total
    )


def refresh_stacks(
    roots: dict[str, Roots], gradients: Stacks, *, damping: Any, precision: Any
) -> dict[str, Roots]:
    """Refreshes the roots of all tiles (lines 5 to 8).

    Args:
      roots: by stack, left ``[n, R, R]`` and right ``[n, C, C]``.
      gradients: by stack, ``[n, R, C]``.
      damping: as in :func:`~jorge_optax._roots.refresh_root`. Unless it is the number
        0, every side goes by its gram.
      precision: of the matrix products.

    Returns:
      The new roots.
    """
    shapes = frozenset(gradient.shape for gradient in gradients.values())
    thin = thin_stacks(shapes) if is_zero(damping) else frozenset()
    by_gram = jax.vmap(
        functools.partial(candidate_root, damping=damping, precision=precision)
    )
    by_gradient = jax.vmap(functools.partial(refresh_root_thin, precision=precision))

    new: dict[str, dict[str, jax.Array]] = {key: {} for key in roots}
    joined: dict[int, list[tuple[Any, ...]]] = {}
    for key, gradient in gradients.items():
        work_dtype = jnp.promote_types(roots[key].left.dtype, jnp.float32)
        unit, scale = jax.vmap(split_scale)(gradient.astype(work_dtype))
        trace = jnp.sum(jnp.square(unit), axis=(1, 2))  # of either gram
        for side, root in roots[key]._asdict().items():
            g = unit if side == "left" else unit.mT
            if gradient.shape[1:] in thin and g.shape[1] > g.shape[2]:
                new[key][side] = by_gradient(root, g, scale)
            else:
                gram = jnp.matmul(g, g.mT, precision=precision)
                joined.setdefault(len(root[0]), []).append(
                    (key, side, root, gram, scale, trace)
                )
    for batch in joined.values():
        parts = list(zip(*(item[2:] for item in batch), strict=True))
        candidates, accepted = by_gram(*(jnp.concatenate(part) for part in parts))
        start = 0
        for key, side, root, *_ in batch:
            # Chosen here and not in the batch, where the choice would read all roots
            # and so keep XLA from writing each in its place.
            own = slice(start, start + len(root))
            chosen = jnp.where(accepted[own, None, None], candidates[own], root)
            new[key][side] = chosen
            start += len(root)
    return {key: Roots(**sides) for key, sides in new.items()}
