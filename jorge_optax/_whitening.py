"""Whitening: each side's statistic is taken of the gradient whitened by the other."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp

from jorge_optax._checks import check_below_one, check_not_negative
from jorge_optax._numerics import column, split_scales, squared_norms
from jorge_optax._polynomials import PolynomialRoot
from jorge_optax._rule import Preconditioner, apply_roots, repeat
from jorge_optax._sides import BatchBySide, Side, damp, join_sides
from jorge_optax._statistics import (
    LARGEST,
    SMALLEST,
    InverseRoot,
    check_inverse_root,
    is_usable,
    zero_statistics,
)
from jorge_optax._types import Dtype, Precision, Scalar, Sides, Stacks


@dataclasses.dataclass(frozen=True)
class Whitening:
    r"""Whitens Nesterov's momentum from both sides, by matrix products alone.

    .. math::

      L &\leftarrow \beta_2 L + (1 - \beta_2) \tfrac{1}{n} (G B)(G B)^\top, \qquad
      R \leftarrow \beta_2 R + (1 - \beta_2) \tfrac{1}{m} (A G)^\top (A G) \\
      A &\approx L^{-1/2}, \qquad B \approx R^{-1/2}, \qquad
      D = A\,(\beta_1 M + (1 - \beta_1) G)\,B

    for an m x n gradient :math:`G` and its momentum :math:`M`. If the gradient's
    covariance is the Kronecker product :math:`R \otimes L`, then :math:`A G B` has the
    identity for its covariance. Each statistic is taken of the gradient that the other
    side has whitened already: this is the fixed point of the Kronecker product that is
    closest to the covariance in Kullback-Leibler divergence.

    Statistics and roots take twice the memory of the roots alone, and one momentum
    suffices, also for SGD's and for Adam's length.

    Attributes:
      beta2: Weight of the old statistics at a refresh. The statistics forget within
        ``update_interval / (1 - beta2)`` steps.
      start: Size of the identity that is added to the first Gram matrices, relative to
        the mean of their diagonals. It damps directions that have received no gradient.
      inverse_root: Function of a symmetric matrix ``[m, m]`` and a precision that
        returns its (approximate) inverse square root.

    Examples:
      >>> from jorge_optax import Whitening, jorge
      >>> optimizer = jorge(0.1, rule=Whitening())
    """

    beta2: float = 0.9
    start: float = 0.3
    inverse_root: InverseRoot = PolynomialRoot(order=2)

    def __post_init__(self) -> None:
        """Checks the options."""
        check_below_one("Whitening.beta2", self.beta2)
        check_not_negative("Whitening.start", self.start)
        check_inverse_root("Whitening", self.inverse_root)

    @property
    def preconditions(self) -> Literal["nesterov"]:
        """Says that the roots are applied to Nesterov's momentum."""
        return "nesterov"

    def init(
        self, tiles: dict[str, jax.ShapeDtypeStruct], *, eps: Scalar, dtype: Dtype
    ) -> Preconditioner:
        """Starts roots as identities and statistics as zero; ``eps`` is not used."""
        del eps
        roots = {
            key: Sides(
                repeat(jnp.eye(rows, dtype=dtype), n),
                repeat(jnp.eye(columns, dtype=dtype), n),
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
        """Moves both statistics of each tile, and takes their roots.

        A tile whose gradient is zero or not finite keeps its statistics and roots.
        """
        del momenta
        matmul = functools.partial(jnp.matmul, precision=precision)
        tracked, usable, by_side = {}, {}, BatchBySide()
        for key, (left, right) in whiten_sides(kept, gradients, matmul).items():
            usable[key] = column(is_usable(left.trace))
            old = kept.statistics[key]
            first = jnp.trace(old.left, axis1=1, axis2=2) == 0
            new = balance(
                *(
                    self._track(side, old, first, damping, matmul)
                    for side, old in ((left, old.left), (right, old.right))
                )
            )
            tracked[key] = jax.tree.map(
                lambda new, old, use=usable[key]: jnp.where(use, new, old), new, old
            )
            by_side.add(left, tracked[key].left)
            by_side.add(right, tracked[key].right)
        roots = [
            jax.vmap(lambda statistic: self.inverse_root(statistic, precision))(batch)
            for (batch,) in by_side.batches()
        ]
        chosen = (
            (side, jnp.where(usable[side.stack], root.astype(old.dtype), old))
            for side, root in by_side.split(roots)
            for old in (side.of(kept.roots),)
        )
        return Preconditioner(join_sides(chosen), tracked)

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots."""
        return apply_roots(kept, matrices, precision=precision)

    def _track(
        self,
        side: Side,
        old: jax.Array,
        first: jax.Array,
        damping: Scalar,
        matmul,
    ) -> jax.Array:
        """Moves the statistic of one side; the first gradient sets it."""
        gram = matmul(side.gradient, side.gradient.mT)
        trace = squared_norms(side.gradient)
        gram = damp(gram, trace, damping + jnp.where(first, self.start, 0))
        scale = column(jnp.clip(side.scale, SMALLEST, LARGEST))
        weight = column(jnp.where(first, 0, self.beta2).astype(old.dtype))
        share = (1 - weight) / side.gradient.shape[-1]
        return weight * old + share * gram * scale * scale


def whiten_sides(
    kept: Preconditioner, gradients: Stacks, matmul
) -> dict[str, tuple[Side, Side]]:
    """Whitens each gradient by the old root of the other side.

    Before the first refresh of a tile, the root of the other side counts as
    ``I / sqrt(rms(G))``, for which both statistics get the same scale.

    Returns:
      By stack, its left side with ``G B`` and its right side with ``(A G)^T``, both
      divided by their scales; their traces are those of the scaled G.
    """
    wide = [
        gradient.astype(kept.statistics[key].left.dtype)
        for key, gradient in gradients.items()
    ]
    units = dict(zip(gradients, split_scales(wide), strict=True))
    sides = [
        side.astype(g.dtype)
        for g, r in zip(wide, kept.roots.values(), strict=True)
        for side in r
    ]
    roots = iter(split_scales(sides))
    whitened = {}
    for key, (unit, scale) in units.items():
        (left, left_scale), (right, right_scale) = next(roots), next(roots)
        trace = squared_norms(unit)
        first = jnp.trace(kept.statistics[key].left, axis1=1, axis2=2) == 0
        rms = jnp.sqrt(trace / (unit.shape[1] * unit.shape[2]))
        start = jax.lax.rsqrt(jnp.where(rms > 0, rms, 1) * scale)
        whitened[key] = (
            Side(
                key,
                "left",
                matmul(unit, right),
                jnp.where(first, start, right_scale) * scale,
                trace,
            ),
            Side(
                key,
                "right",
                matmul(left, unit).mT,
                jnp.where(first, start, left_scale) * scale,
                trace,
            ),
        )
    return whitened


def balance(left: jax.Array, right: jax.Array) -> Sides:
    """Gives both statistics the same mean eigenvalue: only the product is fixed."""
    means = [jnp.trace(x, axis1=1, axis2=2) / x.shape[-1] for x in (left, right)]
    safe = [jnp.where(mean > 0, mean, 1) for mean in means]
    factor = column(jnp.sqrt(safe[1]) / jnp.sqrt(safe[0]))
    return Sides(left * factor, right / factor)
