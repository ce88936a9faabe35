"""Shampoo's statistics, tracked, and a rule that takes their inverse fourth roots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jorge_optax._algorithm import initial_root
from jorge_optax._checks import check_below_one, check_input, check_not_negative
from jorge_optax._numerics import column
from jorge_optax._polynomials import PolynomialRoot
from jorge_optax._rule import Input, Preconditioner, apply_roots, repeat
from jorge_optax._sides import BatchBySide, damp, join_sides, split_sides
from jorge_optax._types import Dtype, Precision, Scalar, Sides, Stacks

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
        roots = {
            key: Sides(
                repeat(initial_root(rows, eps, dtype), n),
                repeat(initial_root(columns, eps, dtype), n),
            )
            for key, (n, rows, columns) in ((k, t.shape) for k, t in tiles.items())
        }
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
        tracked, by_side = [], BatchBySide()
        for side in split_sides(source, kept.roots):
            old = side.of(kept.statistics)
            gram = jnp.matmul(side.gradient, side.gradient.mT, precision=precision)
            # A statistic is zero until the first gradient, and never after.
            first = jnp.trace(old, axis1=1, axis2=2) == 0
            share = damping + jnp.where(first, self.start, 0)
            gram = damp(gram, side.trace, share)
            scale = column(jnp.clip(side.scale, SMALLEST, LARGEST))
            new = self.beta2 * old + ((1 - self.beta2) * gram) * scale * scale
            statistic = jnp.where(column(is_usable(side.trace)), new, old)
            tracked.append((side, statistic))
            by_side.add(side, statistic)
        roots = [
            jax.vmap(lambda statistic: self.inverse_root(statistic, precision))(batch)
            for (batch,) in by_side.batches()
        ]
        chosen = (
            (side, _choose(side.trace, side.of(kept.roots), root))
            for side, root in by_side.split(roots)
        )
        return Preconditioner(join_sides(chosen), join_sides(tracked))

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots."""
        return apply_roots(kept, matrices, precision=precision)


def zero_statistics(
    tiles: dict[str, jax.ShapeDtypeStruct], dtype: Dtype
) -> dict[str, Sides]:
    """Returns statistics of zero, which the first gradient replaces."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return {
        key: Sides(jnp.zeros((n, rows, rows), wide), jnp.zeros((n, c, c), wide))
        for key, (n, rows, c) in ((k, t.shape) for k, t in tiles.items())
    }


def is_usable(trace: jax.Array) -> jax.Array:
    """Returns whether a gradient is finite and not zero, from its squared norm."""
    return jnp.isfinite(trace) & (trace > 0)


def check_inverse_root(rule: str, inverse_root: InverseRoot) -> None:
    """Raises unless an inverse root can be called."""
    if not callable(inverse_root):
        raise TypeError(
            f"{rule}.inverse_root must be a function of a matrix and a precision, such "
            f"as PolynomialRoot(), got {inverse_root!r}."
        )


def _choose(trace: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
    return jnp.where(column(is_usable(trace)), new.astype(old.dtype), old)
