"""Whitening: each side's statistic is taken of the gradient whitened by the other."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp

from jorge_optax._checks import check_below_one, check_not_negative
from jorge_optax._numerics import split_scales
from jorge_optax._polynomials import PolynomialRoot
from jorge_optax._rule import Preconditioner
from jorge_optax._sides import Side, apply_roots, damp, join_sides, split_sides
from jorge_optax._statistics import (
    LARGEST,
    SMALLEST,
    InverseRoot,
    check_inverse_root,
    is_usable,
    take_roots,
    zero_statistics,
)
from jorge_optax._types import Dtype, Matmul, Precision, Scalar, Sides, Stacks


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
        roots = {}
        for key, (n, rows, columns) in ((k, tile.shape) for k, tile in tiles.items()):
            left, right = (jnp.eye(m, dtype=dtype) for m in (rows, columns))
            roots[key] = Sides(jnp.tile(left, (n, 1, 1)), jnp.tile(right, (n, 1, 1)))
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
        sides = whiten_sides(split_sides(gradients, kept.roots), kept, matmul)
        moved = [
            self._move(
                side, getattr(kept.statistics[side.stack], side.name), damping, matmul
            )
            for side in sides
        ]
        statistics = []
        for left, right in zip(moved[::2], moved[1::2], strict=True):
            statistics += balance(left, right)
        statistics = [
            jnp.where(
                is_usable(side), new, getattr(kept.statistics[side.stack], side.name)
            )
            for side, new in zip(sides, statistics, strict=True)
        ]
        roots = take_roots(self.inverse_root, statistics, sides, precision)
        return Preconditioner(roots, join_sides(sides, statistics))

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots."""
        return apply_roots(kept.roots, matrices, precision)

    def _move(
        self, side: Side, old: jax.Array, damping: Scalar, matmul: Matmul
    ) -> jax.Array:
        """Moves the statistic of one side; the first gradient sets it."""
        first = is_zero_statistic(old)
        gram = matmul(side.gradient, side.gradient.mT)
        trace = jnp.sum(jnp.square(side.gradient), (1, 2))
        gram = damp(gram, trace, damping + jnp.where(first, self.start, 0))
        scale = jnp.clip(side.scale, SMALLEST, LARGEST)[:, None, None]
        weight = jnp.where(first, 0, self.beta2).astype(old.dtype)[:, None, None]
        share = (1 - weight) / side.gradient.shape[-1]
        return weight * old + share * gram * scale * scale


def whiten_sides(sides: list[Side], kept: Preconditioner, matmul: Matmul) -> list[Side]:
    """Whitens the gradient of each side by the old root of the other side.

    Before the first refresh of a tile, the root of the other side counts as
    ``I / sqrt(rms(G))``, which gives both statistics the same scale.

    Returns:
      The sides, the left ones with ``G B`` and the right ones with ``(A G)^T``, both
      divided by their scales.
    """
    others = [
        sides[i ^ 1].root.astype(side.gradient.dtype) for i, side in enumerate(sides)
    ]
    whitened = []
    for side, (root, root_scale) in zip(sides, split_scales(others), strict=True):
        size = side.gradient.shape[1] * side.gradient.shape[2]
        rms = jnp.sqrt(side.trace / size) * side.scale
        start = jax.lax.rsqrt(jnp.where(rms > 0, rms, 1))
        first = is_zero_statistic(kept.statistics[side.stack].left)
        scale = jnp.where(first, start, root_scale) * side.scale
        # Roots are symmetric, so that G B and (A G)^T = G^T A have one form.
        gradient = matmul(side.gradient, root)
        whitened.append(side._replace(gradient=gradient, scale=scale))
    return whitened


def is_zero_statistic(statistic: jax.Array) -> jax.Array:
    """Returns ``[n]`` whether a tile has received no gradient yet."""
    return jnp.trace(statistic, axis1=1, axis2=2) == 0


def balance(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gives both statistics the same mean eigenvalue: only the product is fixed."""
    means = [jnp.trace(x, axis1=1, axis2=2) / x.shape[-1] for x in (left, right)]
    safe = [jnp.where(mean > 0, mean, 1) for mean in means]
    factor = (jnp.sqrt(safe[1]) / jnp.sqrt(safe[0]))[:, None, None]
    return left * factor, right / factor
