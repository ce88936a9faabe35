"""Refreshes all roots of all stacks in as few, as large, matrix products as possible.

The kernels need only a root and a gram matrix, or a statistic, so all sides of equal
length, left or right, of all stacks, are joined into one batch. Only where a stack's
tall tiles would save much by the paper's series without a gram are they refreshed by
themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jorge_optax._checks import is_zero
from jorge_optax._roots import Roots, Side, damped, refresh_roots
from jorge_optax._scales import MATRIX, split_scales
from jorge_optax._stacks import Stacks

# A stack's side is refreshed without its gram where that saves at least this share of
# all multiplications of a refresh.
WORTH_ITS_OWN_ORDER = 0.01


def gram_multiplications(m: int, n: int, terms: int = 2) -> int:
    """Scalar multiplications to refresh the side m of an m x n tile by its gram."""
    return m * m * n + (3 + terms) * m**3


def thin_multiplications(m: int, n: int, terms: int = 2) -> int:
    """The same by the order of products without a gram."""
    powers = 2 * m * n * n + (terms - 2) * n**3 if terms > 1 else 0
    return 7 * m * m * n + powers


@functools.lru_cache(maxsize=256)
def thin_stacks(
    shapes: frozenset[tuple[int, int, int]], terms: int
) -> frozenset[tuple[int, int]]:
    """The tile shapes whose long side is refreshed without a gram.

    Args:
      shapes: number, rows and columns of the tiles of each stack.
      terms: of the series.

    Returns:
      Rows and columns of the tiles concerned.
    """
    total = 0
    saved = {}
    for n, rows, columns in shapes:
        long, short = max(rows, columns), min(rows, columns)
        by_gram = gram_multiplications(long, short, terms)
        total += n * (by_gram + gram_multiplications(short, long, terms))
        less = by_gram - thin_multiplications(long, short, terms)
        saved[rows, columns] = n * less
    return frozenset(
        tile for tile, less in saved.items() if less >= WORTH_ITS_OWN_ORDER * total
    )


def refresh_by_series(
    roots: dict[str, Roots],
    gradients: Stacks,
    *,
    factors: tuple[float, ...],
    damping: Any,
    precision: Any,
) -> dict[str, Roots]:
    """Refreshes the roots of all tiles by the paper's rule (lines 5 to 8).

    Args:
      roots: by stack, left ``[n, R, R]`` and right ``[n, C, C]``.
      gradients: by stack, ``[n, R, C]``.
      factors: of the series, as in :func:`~jorge_optax._roots.refresh_root`.
      damping: as there. Unless it is the number 0, every side goes by its gram.
      precision: of the matrix products.

    Returns:
      The new roots.
    """
    shapes = frozenset(gradient.shape for gradient in gradients.values())
    thin = thin_stacks(shapes, len(factors)) if is_zero(damping) else frozenset()
    names: list[tuple[str, str]] = []
    tall: list[Side] = []
    joined = _Joined()
    for key, side, root, g, scale, trace in _sides(roots, gradients):
        if gradients[key].shape[1:] in thin and g.shape[1] > g.shape[2]:
            names.append((key, side))
            tall.append(Side(root, g, scale, trace))
        else:
            gram = jnp.matmul(g, g.mT, precision=precision)
            if not is_zero(damping):
                gram = damped(gram, trace, damping)
            joined.add((key, side), root, gram, scale, trace)
    batches = [Side(*batch) for batch in joined.batches()]
    refreshed = refresh_roots(batches, tall, series=factors, precision=precision)
    parts = [*joined.parts(refreshed[: len(batches)])]
    parts += zip(names, refreshed[len(batches) :], strict=True)
    new: dict[str, dict[str, jax.Array]] = {key: {} for key in roots}
    for (key, side), (candidate, accepted) in parts:
        # Chosen here and not in the batch, where the choice would read all roots
        # and so keep XLA from writing each in its place.
        root = getattr(roots[key], side)
        new[key][side] = jnp.where(accepted[:, None, None], candidate, root)
    return {key: Roots(**sides) for key, sides in new.items()}


# Entries of a gradient beyond these enter the statistics as if they were just these:
# their squares stay well within float32's range.
LARGEST, SMALLEST = 2.0**50, 2.0**-50


def refresh_by_statistics(
    roots: dict[str, Roots],
    statistics: dict[str, Roots],
    gradients: Stacks,
    *,
    beta2: float,
    start: float,
    root: Callable[[jax.Array], jax.Array],
    damping: Any,
    precision: Any,
) -> tuple[dict[str, Roots], dict[str, Roots]]:
    """Moves the statistics of all tiles towards new grams, and takes their roots.

    Args:
      roots: by stack, left ``[n, R, R]`` and right ``[n, C, C]``.
      statistics: of the same shapes.
      gradients: by stack, ``[n, R, C]``.
      beta2: weight of the old statistics.
      start: ``start * tr(gram) / m`` is added to the diagonal of a tile's first gram.
      root: of one statistic.
      damping: ``damping * tr(gram) / m`` is added to the diagonal of each gram.
      precision: of the matrix products.

    Returns:
      New roots and statistics; the old ones of tiles whose gradient is zero or not
      finite.
    """
    new: dict[str, dict[str, jax.Array]] = {key: {} for key in roots}
    tracked: dict[str, dict[str, jax.Array]] = {key: {} for key in roots}
    kept: dict[str, jax.Array] = {}
    joined = _Joined()
    for key, side, _, g, scale, trace in _sides(roots, gradients):
        old = getattr(statistics[key], side)
        gram = jnp.matmul(g, g.mT, precision=precision)
        # A statistic is zero until the first gradient, and never after.
        first = jnp.trace(old, axis1=1, axis2=2) == 0
        share = damping + jnp.where(first, start, 0)
        gram = damped(gram, trace, share)
        scale = jnp.clip(scale, SMALLEST, LARGEST)[:, None, None]
        statistic = beta2 * old + ((1 - beta2) * gram) * scale * scale
        kept[key] = ~(jnp.isfinite(trace) & (trace > 0))[:, None, None]
        statistic = jnp.where(kept[key], old, statistic)
        tracked[key][side] = statistic
        joined.add((key, side), statistic)
    candidates = [jax.vmap(root)(*batch) for batch in joined.batches()]
    for (key, side), candidate in joined.parts(candidates):
        old = getattr(roots[key], side)
        new[key][side] = jnp.where(kept[key], old, candidate.astype(old.dtype))
    return (
        {key: Roots(**sides) for key, sides in new.items()},
        {key: Roots(**sides) for key, sides in tracked.items()},
    )


def _sides(roots: dict[str, Roots], gradients: Stacks) -> Iterator[tuple[Any, ...]]:
    """Key, side, root, gradient or its transpose, its scale, trace of its gram.

    The gradient is divided by its scale.
    """
    wide = [
        gradient.astype(jnp.promote_types(roots[key].left.dtype, jnp.float32))
        for key, gradient in gradients.items()
    ]
    for key, (unit, scale) in zip(gradients, split_scales(wide), strict=True):
        trace = jnp.sum(jnp.square(unit), MATRIX)
        yield key, "left", roots[key].left, unit, scale, trace
        yield key, "right", roots[key].right, unit.mT, scale, trace


class _Joined:
    """Stacks of square matrices, joined into one batch for each length of side."""

    def __init__(self) -> None:
        self._batches: dict[int, list[tuple[Any, tuple[jax.Array, ...]]]] = {}

    def add(self, name: Any, *arrays: jax.Array) -> None:
        """Adds arrays ``[n, ...]``, of which the first is ``[n, m, m]``."""
        self._batches.setdefault(arrays[0].shape[-1], []).append((name, arrays))

    def batches(self) -> Iterator[list[jax.Array]]:
        """The arrays of each batch."""
        for batch in self._batches.values():
            columns = zip(*(arrays for _, arrays in batch), strict=True)
            yield [jnp.concatenate(column) for column in columns]

    def parts(self, results: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Names, and their parts of what was made of each batch."""
        for batch, result in zip(self._batches.values(), results, strict=True):
            start = 0
            for name, arrays in batch:
                own = slice(start, start + len(arrays[0]))
                yield name, jax.tree.map(lambda x, own=own: x[own], result)
                start += len(arrays[0])
