"""Shampoo's statistics, tracked, and a rule that takes their inverse fourth roots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jorge_optax._checks import check_below_one, check_input, check_not_negative
from jorge_optax._polynomials import PolynomialRoot
from jorge_optax._rule import Preconditioner
from jorge_optax._sides import (
    Groups,
    Side,
    apply_roots,
    damp,
    join_sides,
    map_batches,
    split_sides,
    start_roots,
)
from jorge_optax._types import Dtype, Input, Precision, Scalar, Sides, Stacks

InverseRoot = Callable[[jax.Array, Precision], jax.Array]

# Entries of a gradient beyond these enter the statistics as if they were just these:
# their squares stay well within float32's range.
LARGEST, SMALLEST = 2.0**50, 2.0**-50


@dataclasses.dataclass(frozen=True)
class TrackedStatistics:
    r"""Tracks Shampoo's statistics and takes their inverse fourth roots.

    .. math::

      L \leftarrow \beta_2 L + (1 - \beta_2) G G^\top, \qquad \hat L \approx L^{-1/4}

    By default a composition of polynomials approximates the roots, by matrix products
    alone; any other function of one matrix can take its place. The roots are symmetric
    and positive definite, and depend on the statistics alone, so no error accumulates.
    They are close to those of Shampoo with exact roots from the first refresh. The
    statistics take as much memory as the roots.

    A multiple of the identity, ``start`` times as large as the first Gram matrix, is
    added to that matrix, which damps directions that have received no gradient yet.

    Attributes:
      beta2: Weight of the old statistics at a refresh.
      start: Size of the identity that is added to the first Gram matrix.
      inverse_root: Function of a symmetric matrix ``[m, m]`` and a precision that
        returns its (approximate) inverse fourth root; :class:`PolynomialRoot` by
        default.
      preconditions: As for :class:`BinomialSeries`.

    Examples:
      >>> from jorge_optax import TrackedStatistics, jorge
      >>> optimizer = jorge(0.1, rule=TrackedStatistics())
    """

    beta2: float = 0.95
    start: float = 0.3
    inverse_root: InverseRoot = PolynomialRoot()
    preconditions: Input = "gradient"

    def __post_init__(self) -> None:
        """Checks the options."""
        check_below_one("TrackedStatistics.beta2", self.beta2)
        check_not_negative("TrackedStatistics.start", self.start)
        check_inverse_root("TrackedStatistics", self.inverse_root)
        check_input("TrackedStatistics.preconditions", self.preconditions)

    def init(
        self, tiles: dict[str, jax.ShapeDtypeStruct], *, eps: Scalar, dtype: Dtype
    ) -> Preconditioner:
        """Starts roots as the paper does, and statistics as zero."""
        roots = start_roots(tiles, eps, dtype)
        return Preconditioner(roots, zero_statistics(tiles, dtype))

    def refresh(
        self,
        kept: Preconditioner,
        gradients: Stacks,
        momenta: Stacks | None,
        *,
        damping: Scalar,
        precision: Precision,
    ) -> Preconditioner:
        """Moves the statistics towards new Gram matrices, and takes their roots.

        A tile whose gradient is zero or not finite keeps its statistics and roots.
        """
        source = gradients
        if self.preconditions == "momentum" and momenta is not None:
            source = momenta
        sides = split_sides(source, kept.roots)
        statistics = []
        for side in sides:
            old = getattr(kept.statistics[side.stack], side.name)
            gram = jnp.matmul(side.gradient, side.gradient.mT, precision=precision)
            # A statistic is zero until the first gradient, and never after.
            first = jnp.trace(old, axis1=1, axis2=2) == 0
            gram = damp(gram, side.trace, damping + jnp.where(first, self.start, 0))
            scale = jnp.clip(side.scale, SMALLEST, LARGEST)[:, None, None]
            new = self.beta2 * old + ((1 - self.beta2) * gram) * scale * scale
            statistics.append(jnp.where(side.usable, new, old))
        roots = take_roots(self.inverse_root, statistics, sides, precision)
        return Preconditioner(roots, join_sides(sides, statistics))

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots."""
        return apply_roots(kept.roots, matrices, precision)


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
