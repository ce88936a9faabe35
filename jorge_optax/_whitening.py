"""The whitening rule, for one matrix: roots that what they have whitened corrects."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._errors import SHARE, check_number, count_from
from jorge_optax._rule import Root, Rounding, Rule

# (1 + y)^(-1/4) for y from 0 to Y is interpolated at five Chebyshev nodes v of [0, 1],
# y = Y v. Up to Y = 10 the polynomial falls all the way, as the function does, and is
# within 1.5% of it; for Y = 1 within 3e-5.
NODES = (1 + np.cos(np.pi * (2 * np.arange(5) + 1) / 10)) / 2
COEFFICIENTS = np.linalg.inv(np.vander(NODES, increasing=True))  # of 1, v, v^2, ...
REACH = 10.0


class Seen(NamedTuple):
    """What one side sees of a gradient, D being the whitened one.

    Attributes:
      product: ``[m, m]``, ``D D^T / |G|^2``.
      energy: ``[]``, ``|G B|^2 / |G|^2``, where B is the root of the other side.
      scale: ``[]``, the geometric mean of both scales, of which the product matters:
        both sides go on from it, so that neither drifts away.
    """

    product: jax.Array
    energy: jax.Array
    scale: jax.Array


@dataclasses.dataclass(frozen=True)
class Whitening(Rule):
    r"""Whitens Nesterov's momentum from both sides, by matrix products alone.

    .. math::

      D &= A \hat G B, \qquad
      W = \tfrac1n D D^\top + \rho\,\tau A^2, \qquad
      a = \tfrac{1 - \beta_2}{\beta_2} \\
      A &\leftarrow \sqrt{1 + a}\; F A F, \qquad F \approx (I + a W)^{-1/4}

    for an m x n gradient :math:`G`, :math:`\hat G` the same divided by its root mean
    square, and the roots :math:`A` and :math:`B`, which start as identities; :math:`B`
    is refreshed likewise from :math:`D^\top D / m`. The step has the direction of
    :math:`A (\beta_1 M + (1 - \beta_1) G) B`, with the momentum :math:`M`. Where
    :math:`W` is the identity, the gradient is white and the roots stay. The ridge, with
    :math:`\tau = \|\hat G B\|_F^2 / n` and a :math:`\rho` that follows from
    :math:`\beta_2`, bounds the roots of directions that receive no gradient.

    Keeps roots and one momentum, and no statistics: three quarters of the state of the
    paper's rule with SGD's length, and about its operations.

    Attributes:
      beta2: Weight of the past at a refresh. The roots forget within about
        ``update_interval / (1 - beta2)`` steps. Eigenvalues of a root differ by at most
        a factor of some ``6 / (1 - beta2) - 2``, 58 by default: beyond, corrections
        would overshoot.
      early_refreshes: The roots are refreshed at each of so many first steps, when
        gradients change fastest, whatever the interval.
      damping: Added to :math:`\rho`.

    Examples:
      >>> from jorge_optax import Whitening, jorge
      >>> optimizer = jorge(0.1, rule=Whitening())
    """

    beta2: float = 0.9
    early_refreshes: int = 50
    damping: float = 0.0
    precision: ClassVar[str] = "high"  # TF32, which trains as well

    def __post_init__(self) -> None:
        """Checks the options."""
        must = "must lie in (0, 1)", lambda x: 0 < x < 1
        check_number("Whitening.beta2", self.beta2, must)
        check_number("Whitening.early_refreshes", self.early_refreshes, count_from(0))
        check_number("Whitening.damping", self.damping, SHARE)

    def init(self, real: jax.Array, dtype: np.dtype) -> Root:
        """Returns the identity, of trace m, the number of real rows."""
        return Root(jnp.diag(real).astype(dtype), jnp.ones([], real.dtype))

    def observe(
        self, left: Root, right: Root, gradient: jax.Array, size: jax.Array
    ) -> tuple[Seen, Seen]:
        """Whitens the gradient, whose size does not matter."""
        del size
        a, b = left.unit, right.unit
        by_left, by_right = a @ gradient, gradient @ b
        rows, columns = gradient.shape
        d = by_left @ b if columns <= rows else a @ by_right
        scale = left.scale * right.scale
        share, mean = scale**2 / jnp.sum(jnp.square(gradient)), jnp.sqrt(scale)
        return (
            Seen(share * (d @ d.T), share * jnp.sum(jnp.square(by_right)), mean),
            Seen(share * (d.T @ d), share * jnp.sum(jnp.square(by_left)), mean),
        )

    def refresh(
        self, root: Root, seen: Seen, real: jax.Array, rounding: Rounding
    ) -> Root:
        """Corrects the root by the covariance W of what it has whitened.

        Where root and W commute, the result is the inverse square root of
        ``root^-2 + a S``, over ``1 + a``, with the covariance S of the gradient that
        only the other side has whitened. It comes out symmetric, of trace m and,
        despite rounding, positive definite.
        """
        eye, tiny, a = jnp.diag(real), jnp.finfo(real.dtype).tiny, root.unit
        side = jnp.maximum(jnp.sum(real), 1)
        ridge = largest_ratio(self.beta2) ** -2 + self.damping
        w = side * (seen.product + ridge * seen.energy * (a @ a))
        # Divided by its trace, so that no square overflows.
        trace = jnp.maximum(jnp.trace(w), tiny)
        w = w / trace
        square = w @ w
        # tr(w^4)^(1/4), which bounds the largest eigenvalue.
        bound = jnp.maximum(jnp.sum(jnp.square(square)), tiny**0.5) ** 0.25
        weight = (1 - self.beta2) / self.beta2
        weight = jnp.minimum(weight, REACH / (trace * bound))
        c0, c1, c2, c3, c4 = interpolate(weight * trace * bound, bound)
        f = (1 + c0) * eye + c1 * w + square @ (c2 * eye + c3 * w + c4 * square)
        half = f @ (a @ f)
        # F A F = half + half^T, but for a scale.
        mean = jnp.maximum(jnp.trace(half) / side, tiny)
        unit = (half + half.T) / (2 * mean)
        # A rounding error of relative size u changes no eigenvalue by more than u times
        # the norm.
        size = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(half)), tiny))
        unit = unit + rounding.products * size / mean * eye
        scale = seen.scale * mean * jnp.sqrt(1 + weight)
        return Root(round_root(unit, rounding.dtype), scale)

    def precondition(self, left: Root, right: Root, matrix: jax.Array) -> jax.Array:
        """Returns ``A M B``."""
        # No eigenvalue of a root exceeds its trace: the products cannot overflow.
        traces, most = math.prod(matrix.shape), jnp.finfo(matrix.dtype).max
        direction = left.unit @ (matrix / traces) @ right.unit
        scale = traces * left.scale * right.scale
        return jnp.clip(scale * direction, -most, most)


def interpolate(reach: jax.Array, bound: jax.Array) -> list[jax.Array]:
    """Returns c: ``(1 + reach w / bound)^(-1/4) - 1`` is about ``sum c_k w^k``."""
    y = reach * NODES.astype(reach.dtype)
    root = jnp.sqrt(1 + y)
    fourth = jnp.sqrt(root)
    # Less one, the value at 0: small differences from it lose no digits.
    values = -y / ((1 + root) * (1 + fourth) * fourth)
    sums = [jnp.sum(own * values) for own in COEFFICIENTS.astype(reach.dtype)]
    return [own / bound**k for k, own in enumerate(sums)]


def largest_ratio(beta2: float) -> float:
    """Returns the largest ratio c of eigenvalues of a root that corrections allow.

    At the fixed point a correction multiplies an error in the entry (i, j) of a root,
    in its eigenbasis, by ``1 - (1 - beta2) (c + 1)^2 / (4 c)``, where c is the ratio of
    the eigenvalues i and j. That is -1/2 at the c returned here; below -1 errors grow.
    """
    half = 3 / (1 - beta2) - 1
    return half + math.sqrt(half**2 - 1)


def round_root(root: jax.Array, dtype: np.dtype) -> jax.Array:
    """Rounds a positive definite matrix, and keeps it so.

    Rounding the entries off the diagonal adds a symmetric E, whose eigenvalues are at
    most ``|E^2|_F^(1/2)``. That multiple of the identity is added to the diagonal,
    which is then rounded up.
    """
    if root.dtype == dtype:
        return root
    limits = jnp.finfo(dtype)
    diagonal = jnp.diag(jnp.diagonal(root))
    rest = root - diagonal
    # Not a cast to the dtype and back, which XLA would remove.
    error = jax.lax.reduce_precision(rest, limits.nexp, limits.nmant) - rest
    square = jnp.matmul(error, error, precision="highest")
    bound = jnp.where(diagonal > 0, jnp.sum(jnp.square(square)) ** 0.25, 0)
    return (rest + (1 + float(limits.eps)) * (diagonal + bound)).astype(dtype)
