"""Whitening: each side's statistic is taken of the gradient whitened by the other."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp

from jorge_optax._checks import check_below_one, check_count, check_share
from jorge_optax._polynomials import PolynomialRoot
from jorge_optax._rule import Preconditioner
from jorge_optax._sides import (
    Side,
    apply_roots,
    damp,
    join_sides,
    split_sides,
    start_roots,
)
from jorge_optax._statistics import (
    InverseRoot,
    check_inverse_root,
    take_roots,
    zero_statistics,
)
from jorge_optax._types import Dtype, Matmul, Precision, Scalar, Stacks


@dataclasses.dataclass(frozen=True)
class Whitening:
    r"""Whitens Nesterov's momentum from both sides, by matrix products alone.

    .. math::

      L &\leftarrow \beta_2 L + (1 - \beta_2) \tfrac{1}{n} (\hat G B)(\hat G B)^\top,
      \qquad
      R \leftarrow \beta_2 R + (1 - \beta_2) \tfrac{1}{m} (A \hat G)^\top (A \hat G) \\
      A &\approx L^{-1/2}, \qquad B \approx R^{-1/2}, \qquad
      D = A\,(\beta_1 M + (1 - \beta_1) G)\,B

    for an m x n gradient :math:`G`, :math:`\hat G` the same divided by its root mean
    square, and the momentum :math:`M`. If the covariance of the gradients is the
    Kronecker product :math:`R \otimes L`, then that of :math:`A \hat G B` is the
    identity. Each statistic is taken of the gradient that the other side has whitened
    already: this is the fixed point of the Kronecker product that is closest to the
    covariance in Kullback-Leibler divergence.

    Statistics and roots take twice the memory of the roots alone. One momentum
    suffices, also for SGD's and for Adam's length.

    Attributes:
      beta2: Weight of the old statistics at a refresh. The statistics forget within
        ``update_interval / (1 - beta2)`` steps.
      start: Size of the identity that is added to the first Gram matrices, relative to
        the mean of their diagonals. It damps directions that have received no gradient.
      early_refreshes: The roots are refreshed at each of so many first steps, when
        gradients change fastest, whatever the interval.
      inverse_root: Function of a symmetric matrix ``[m, m]`` and a precision that
        returns its (approximate) inverse square root.

    Examples:
      >>> from jorge_optax import Whitening, jorge
      >>> optimizer = jorge(0.1, rule=Whitening())
    """

    beta2: float = 0.9
    start: float = 0.3
    early_refreshes: int = 20
    inverse_root: InverseRoot = PolynomialRoot(order=2)

    def __post_init__(self) -> None:
        """Checks the options."""
        check_below_one("Whitening.beta2", self.beta2)
        check_share("Whitening.start", self.start)
        check_count("Whitening.early_refreshes", self.early_refreshes, 0)
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
        identities = start_roots(tiles, 1.0, dtype)
        return Preconditioner(identities, zero_statistics(tiles, dtype))

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
        sides = split_sides(gradients, kept.roots)
        old = [getattr(kept.statistics[side.stack], side.name) for side in sides]
        moved = [
            self._move(side, sides[i ^ 1].root, old[i], damping, matmul)
            for i, side in enumerate(sides)
        ]
        statistics = []
        for i in range(0, len(sides), 2):
            for j, new in enumerate(balance(*moved[i : i + 2]), start=i):
                statistics.append(jnp.where(sides[j].usable, new, old[j]))
        roots = take_roots(self.inverse_root, statistics, sides, precision)
        return Preconditioner(roots, join_sides(sides, statistics))

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots."""
        return apply_roots(kept.roots, matrices, precision)

    def _move(
        self,
        side: Side,
        other_root: jax.Array,
        old: jax.Array,
        damping: Scalar,
        matmul: Matmul,
    ) -> jax.Array:
        """Moves the statistic of one side; the first gradient sets it."""
        # Roots are symmetric: of the right side, G^T A is the transpose of A G.
        whitened = matmul(side.gradient, other_root.astype(side.gradient.dtype))
        gram = matmul(whitened, whitened.mT)
        trace = jnp.sum(jnp.square(whitened), (1, 2))
        # A statistic is zero until the first gradient, and never after.
        first = jnp.trace(old, axis1=1, axis2=2) == 0
        gram = damp(gram, trace, damping + jnp.where(first, self.start, 0))
        weight = jnp.where(first, 0, self.beta2).astype(old.dtype)
        # Of a gradient of root mean square one: trace is m n times its mean square.
        mean_square = jnp.where(side.trace > 0, side.trace, 1) / side.gradient.shape[1]
        share = (1 - weight) / mean_square
        return weight[:, None, None] * old + share[:, None, None] * gram


def balance(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gives both statistics the same mean eigenvalue: only the product is fixed."""
    means = [jnp.trace(x, axis1=1, axis2=2) / x.shape[-1] for x in (left, right)]
    safe = [jnp.where(mean > 0, mean, 1) for mean in means]
    factor = (jnp.sqrt(safe[1]) / jnp.sqrt(safe[0]))[:, None, None]
    return left * factor, right / factor
