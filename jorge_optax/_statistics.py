"""Statistics that a rule keeps beside the roots, and the roots taken of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jorge_optax._sides import Groups, Side, join_sides, map_batches
from jorge_optax._types import Dtype, Precision, Sides

InverseRoot = Callable[[jax.Array, Precision], jax.Array]


def take_roots(
    inverse_root: InverseRoot,
    statistics: Sequence[jax.Array],
    sides: Sequence[Side],
    precision: Precision,
) -> dict[str, Sides]:
    """Takes the inverse roots of the statistics of all sides, in joined batches.

    A tile whose gradient is zero or not finite keeps its roots.
    """

    def take(groups: Groups) -> list[jax.Array]:
        root = jax.vmap(lambda statistic: inverse_root(statistic, precision))
        return [root(statistic) for (statistic,) in groups.values()]

    items = [(statistic,) for statistic in statistics]
    roots = map_batches(take, items, [s.shape[-1] for s in statistics])
    chosen = [
        jnp.where(side.usable, root.astype(side.root.dtype), side.root)
        for side, root in zip(sides, roots, strict=True)
    ]
    return join_sides(sides, chosen)


def zero_statistics(
    tiles: dict[str, jax.ShapeDtypeStruct], dtype: Dtype
) -> dict[str, Sides]:
    """Returns statistics of zero, which the first gradient replaces."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return {
        key: Sides(jnp.zeros((n, rows, rows), wide), jnp.zeros((n, c, c), wide))
        for key, (n, rows, c) in ((k, t.shape) for k, t in tiles.items())
    }


def check_inverse_root(rule: str, inverse_root: InverseRoot) -> None:
    """Raises unless an inverse root can be called."""
    if not callable(inverse_root):
        raise TypeError(
            f"{rule}.inverse_root must be a function of a matrix and a precision, such "
            f"as PolynomialRoot(), got {inverse_root!r}."
        )
