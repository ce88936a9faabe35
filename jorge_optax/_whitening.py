"""Whitening: roots that the gradient which they have whitened corrects."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._checks import check_below_one, check_count, check_positive
from jorge_optax._numerics import at_once, safe_sqrt, trace_of_product
from jorge_optax._rule import Preconditioner
from jorge_optax._sides import (
    Groups,
    Side,
    apply_roots,
    join_sides,
    map_batches,
    split_sides,
    start_roots,
)
from jorge_optax._types import Dtype, Matmul, Precision, Scalar, Stacks

# (1 + y)^(-1/4) for y from 0 to Y is interpolated at five Chebyshev nodes v of [0, 1],
# y = Y v. Up to Y = 10 the polynomial falls all the way, as the function does, and is
# within 1.5% of it; for Y = 1 within 3e-5.
NODES = (1 + np.cos(np.pi * (2 * np.arange(5) + 1) / 10)) / 2
COEFFICIENTS = np.linalg.inv(np.vander(NODES, increasing=True))  # of 1, v, v^2, ...
REACH = 10.0


class Whitened(NamedTuple):
    """Stands for statistics: none, but it tells a state of this rule from others."""


class Corrected(NamedTuple):
    """Corrected roots, not yet symmetric: each is ``scale * (half + half^T)``.

    Attributes:
      half: ``[n, m, m]``.
      scale: ``[n]``.
      mean: ``[n]``, the mean eigenvalue of the root.
      norm: ``[n]``, the norm of the root at least.
    """

    half: jax.Array
    scale: jax.Array
    mean: jax.Array
    norm: jax.Array


@dataclasses.dataclass(frozen=True)
class Whitening:
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

    Examples:
      >>> from jorge_optax import Whitening, jorge
      >>> optimizer = jorge(0.1, rule=Whitening())
    """

    beta2: float = 0.9
    early_refreshes: int = 50

    def __post_init__(self) -> None:
        """Checks the options."""
        check_below_one("Whitening.beta2", self.beta2)
        check_positive("Whitening.beta2", self.beta2, "The past must have some weight.")
        check_count("Whitening.early_refreshes", self.early_refreshes, 0)

    @property
    def preconditions(self) -> Literal["nesterov"]:
        """Says that the roots are applied to Nesterov's momentum."""
        return "nesterov"

    @property
    def precision(self) -> Literal["high"]:
        """Says that the roots may be applied in TF32, which trains as well."""
        return "high"

    def init(
        self, tiles: dict[str, jax.ShapeDtypeStruct], *, eps: Scalar, dtype: Dtype
    ) -> Preconditioner:
        """Starts roots as identities; ``eps`` is not used."""
        del eps
        return Preconditioner(start_roots(tiles, 1.0, dtype), Whitened())

    def refresh(
        self,
        kept: Preconditioner,
        gradients: Stacks,
        momenta: Stacks | None,
        *,
        damping: Scalar,
        precision: Precision,
    ) -> Preconditioner:
        """Corrects both roots of each tile; ``damping`` is added to the ridge.

        A tile whose gradient is zero or not finite keeps its roots.
        """
        del momenta
        matmul = functools.partial(jnp.matmul, precision=precision)
        sides = split_sides(gradients, kept.roots)
        items = whiten(sides, matmul)
        weight = (1 - self.beta2) / self.beta2
        ridge = largest_ratio(self.beta2) ** -2 + damping

        def correct_groups(groups: Groups) -> list[Corrected]:
            batches = [Batch(*arrays) for arrays in groups.values()]
            return correct(batches, weight=weight, ridge=ridge, matmul=matmul)

        corrected = map_batches(
            correct_groups, items, [side.root.shape[1] for side in sides]
        )
        dtype = sides[0].root.dtype
        finished = finish(corrected, roundoff(corrected[0].half.dtype, precision))
        kept_or_new = [
            jnp.where(side.usable, round_root(new, dtype), side.root)
            for side, new in zip(sides, finished, strict=True)
        ]
        return Preconditioner(join_sides(sides, kept_or_new), kept.statistics)

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots."""
        return apply_roots(kept.roots, matrices, precision)


class Batch(NamedTuple):
    """Roots of one length of side, and what corrects them.

    Attributes:
      root: ``[n, m, m]``.
      product: ``[n, m, m]``, of the whitened gradients with their transposes.
      share: ``[n]``, what makes this the covariance W.
      trace: ``[n]``, of W.
      energy: ``[n]``, trace of the covariance S of the gradient that only the other
        side has whitened.
    """

    root: jax.Array
    product: jax.Array
    share: jax.Array
    trace: jax.Array
    energy: jax.Array


def whiten(sides: Sequence[Side], matmul: Matmul) -> list[Batch]:
    """Whitens the gradients of all stacks by the roots of both their sides.

    Args:
      sides: Of each stack the left side and the right one.
      matmul: The matrix product.

    Returns:
      For each side what corrects its roots.
    """
    matrices, sums = [], []
    for left, right in zip(sides[::2], sides[1::2], strict=True):
        gradient = left.gradient
        n, rows, columns = gradient.shape
        a, b = (side.root.astype(gradient.dtype) for side in (left, right))
        by_left, by_right = matmul(a, gradient), matmul(gradient, b)
        white = matmul(by_left, b) if columns <= rows else matmul(a, by_right)
        products = matmul(white, white.mT), matmul(white.mT, white)
        trace = trace_of_product(white, white, products[0])
        energies = (jnp.sum(jnp.square(x), (1, 2)) for x in (by_right, by_left))
        lengths = (jnp.full(n, side, gradient.dtype) for side in (rows, columns))
        matrices.append((a, b, *products))
        sums.append((left.trace, trace, *energies, *lengths))

    # Numbers, and not the gradients, are divided by the mean square.
    def divide(square, trace, by_right, by_left, rows, columns):
        square = jnp.where(square > 0, square, 1) / (rows * columns)
        left, right = 1 / (square * columns), 1 / (square * rows)
        of_left = left, left * trace, left * by_right
        return *of_left, right, right * trace, right * by_left

    batches = []
    numbers = at_once(divide, *zip(*sums, strict=True))
    for (a, b, of_rows, of_columns), own in zip(matrices, numbers, strict=True):
        batches += [Batch(a, of_rows, *own[:3]), Batch(b, of_columns, *own[3:])]
    return batches


def correct(
    batches: Sequence[Batch], *, weight: Scalar, ridge: Scalar, matmul: Matmul
) -> list[Corrected]:
    """Corrects roots by the covariance W of what they have whitened.

    ``sqrt(1 + a) F root F`` with ``F = (I + a W)^(-1/4)`` by a polynomial. Where root
    and W commute, it is the inverse square root of ``root^-2 + a S``, over ``1 + a``.

    Args:
      batches: The roots, and what corrects them.
      weight: The largest a.
      ridge: Share of energy that is added to the diagonal of S.
      matmul: The matrix product.

    Returns:
      The new roots.
    """
    squared = [matmul(batch.root, batch.root) for batch in batches]

    # Divided by the trace, so that no square overflows; zero only without a gradient.
    def divide(share, trace, energy, of_squared):
        lift = ridge * energy
        trace = trace + lift * of_squared
        trace = jnp.where(trace > 0, trace, 1)
        return trace, share / trace, lift / trace

    _, _, shares, given, energies = zip(*batches, strict=True)
    of_squared = [
        trace_of_product(batch.root, batch.root, own)
        for batch, own in zip(batches, squared, strict=True)
    ]
    divided = at_once(divide, shares, given, energies, of_squared)
    units = [
        _each(share) * batch.product + _each(lift) * own
        for batch, own, (_, share, lift) in zip(batches, squared, divided, strict=True)
    ]
    squares = [matmul(unit, unit) for unit in units]
    dtype = units[0].dtype

    def interpolate(trace, fourth):
        # The trace of unit^4, so this bounds the largest eigenvalue.
        bound = jnp.sqrt(jnp.sqrt(jnp.where(fourth > 0, fourth, 1)))
        a = jnp.minimum(weight, REACH / (trace * bound))
        # a W = Y v, where the eigenvalues of v = unit / bound lie in [0, 1].
        reach = a * trace * bound
        # Less one, the value at 0: small differences from it lose no digits.
        values = less_one(reach[:, None] * NODES.astype(dtype)[None])
        sums = [jnp.sum(own[None] * values, 1) for own in COEFFICIENTS.astype(dtype)]
        factors = [own / bound**k for k, own in enumerate(sums)]
        return [jnp.sqrt(1 + a) / 2, 1 + factors[0], *factors[1:]]

    fourths = [jnp.sum(jnp.square(square), (1, 2)) for square in squares]
    numbers = at_once(interpolate, [trace for trace, *_ in divided], fourths)
    halves, means = [], []
    for batch, unit, square, own in zip(batches, units, squares, numbers, strict=True):
        c0, c1, c2, c3, c4 = map(_each, own[1:])
        eye = jnp.eye(unit.shape[1], dtype=dtype)[None]
        rest = matmul(square, c2 * eye + c3 * unit + c4 * square)
        factor = c0 * eye + c1 * unit + rest
        once = matmul(batch.root, factor)
        half = matmul(factor, once)
        halves.append(half)
        means.append(trace_of_product(factor, once, half) / half.shape[1])

    def measure(scale, mean, square):
        return 2 * scale * mean, 2 * scale * jnp.sqrt(square)

    scales = [scale for scale, *_ in numbers]
    norms = [jnp.sum(jnp.square(half), (1, 2)) for half in halves]
    measured = at_once(measure, scales, means, norms)
    return [
        Corrected(half, scale, *own)
        for half, scale, own in zip(halves, scales, measured, strict=True)
    ]


def less_one(y: jax.Array) -> jax.Array:
    """Returns ``(1 + y)^(-1/4) - 1``, to the last digits of small differences too."""
    root = jnp.sqrt(1 + y)
    fourth = jnp.sqrt(root)
    return -y / ((1 + root) * (1 + fourth) * fourth)


def _each(x: jax.Array) -> jax.Array:
    """Makes numbers ``[n]`` factors of matrices ``[n, m, m]``."""
    return x[:, None, None]


def largest_ratio(beta2: float) -> float:
    """Returns the largest ratio c of eigenvalues of a root that corrections allow.

    At the fixed point a correction multiplies an error in the entry (i, j) of a root,
    in its eigenbasis, by ``1 - (1 - beta2) (c + 1)^2 / (4 c)``, where c is the ratio of
    the eigenvalues i and j. That is -1/2 at the c returned here; below -1 errors grow.
    """
    half = 3 / (1 - beta2) - 1
    return half + math.sqrt(half**2 - 1)


def finish(roots: Sequence[Corrected], floor: float) -> list[jax.Array]:
    """Makes roots symmetric, balanced and, despite rounding, positive definite.

    Only the product of the scales of both sides is determined: they get the same mean
    eigenvalue. A rounding error of relative size u, the floor, changes no eigenvalue of
    a root by more than u times its norm, so that multiple of the identity is added.
    """
    others = [roots[i ^ 1].mean for i in range(len(roots))]
    numbers = at_once(
        lambda norm, mean, other: (floor * norm, jnp.sqrt(other) / jnp.sqrt(mean)),
        *([root.norm for root in roots], [root.mean for root in roots], others),
    )
    finished = []
    for (half, scale, _, _), (lift, factor) in zip(roots, numbers, strict=True):
        eye = jnp.eye(half.shape[1], dtype=half.dtype)[None]
        # Scaled last: a fused multiply-add of a scaled sum would not be symmetric.
        root = _each(scale) * (half + half.mT) + _each(lift) * eye
        finished.append(root * _each(factor))
    return finished


def round_root(root: jax.Array, dtype: Dtype) -> jax.Array:
    """Rounds positive definite roots ``[n, m, m]``, and keeps them so.

    Rounding the entries off the diagonal adds a symmetric E, whose eigenvalues are at
    most ``|E^2|_F^(1/2)``. That multiple of the identity is added to the diagonal,
    which is then rounded up.
    """
    if root.dtype == dtype:
        return root
    limits = jnp.finfo(dtype)
    eye = jnp.eye(root.shape[1], dtype=root.dtype)[None]
    rest = root - root * eye
    # Not a cast to the dtype and back, which XLA would remove.
    error = jax.lax.reduce_precision(rest, limits.nexp, limits.nmant) - rest
    square = jnp.matmul(error, error, precision="highest")
    bound = safe_sqrt(safe_sqrt(jnp.sum(jnp.square(square), (1, 2), keepdims=True)))
    up = 1 + float(limits.eps)
    return (rest + up * (root + bound) * eye).astype(dtype)


def roundoff(dtype: Dtype, precision: Precision) -> float:
    """Returns the relative rounding error of matrix products."""
    stored = float(jnp.finfo(dtype).eps) / 2
    if precision == jax.lax.Precision.HIGHEST:
        return stored
    tf32 = precision == jax.lax.Precision.HIGH
    return max(stored, 2.0**-11 if tf32 else 2.0**-8)
