"""The other kernel: the inverse fourth root of a statistic, by a few polynomials.

Everything here takes one symmetric matrix and is vmapped by the caller. With

    x_0 = statistic / bound,          bound >= its largest eigenvalue
    t_k = p_k(x_k)                    a polynomial
    x_{k+1} = t_k^2 x_k t_k^2         nearer to the identity than x_k

the product ``t_0 t_1 ...`` is about ``x_0^(-1/4)``. All factors are polynomials in one
matrix: they commute, and their product is symmetric and positive wherever they are.
docs/composite.md derives the polynomials.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._scales import split_scale

Polynomial = tuple[float, ...]

# Coefficients of 1, x, x^2, ...: the best of degrees 1, 4 and 4 for eigenvalues from
# 3e-5 to 1 (python -m benchmarks.numerics.design).
POLYNOMIALS: tuple[Polynomial, ...] = (
    (1.8336, -1.6979),
    (3.13095, -27.1517, 97.9482, -133.485, 60.5574),
    (2.5463, -9.2422, 24.4787, -28.527, 11.7813),
)


def composite_root(
    statistic: jax.Array,
    *,
    polynomials: tuple[Polynomial, ...] = POLYNOMIALS,
    precision: Any = "highest",
) -> jax.Array:
    """About ``statistic^(-1/4)``, by matrix products alone.

    Args:
      statistic: symmetric, m x m, not negative.
      polynomials: coefficients of 1, x, x^2, ... of each.
      precision: of the matrix products.

    Returns:
      The root, symmetric, m x m. Eigenvalues of the statistic that are too small
      against its largest one for the polynomials get the root's largest eigenvalue.
    """
    mm = functools.partial(jnp.matmul, precision=precision)
    eye = jnp.eye(len(statistic), dtype=statistic.dtype)
    x, scale = split_scale(statistic)
    # Both norms bound the largest eigenvalue; the second is the tighter one.
    square = mm(x, x) if len(polynomials[0]) > 2 else None
    bound = _norm(x) if square is None else jnp.sqrt(_norm(square))
    bound = jnp.where(bound > 0, bound, 1)

    # Polynomials are evaluated at z = 2 x - 1, from -1 to 1, where their coefficients
    # are small: about x they are large, cancel, and make rounding errors large.
    x = x / bound
    z = 2 * x - eye
    if square is not None:
        square = square * (4 / jnp.square(bound)) - 4 * x + eye  # z^2
    root = factor = _evaluate(_about_half(polynomials[0]), z, square, mm)
    for polynomial in polynomials[1:]:
        squared = mm(factor, factor)
        x = _symmetric(mm(squared, mm(x, squared)))
        z = 2 * x - eye
        square = mm(z, z) if len(polynomial) > 2 else None
        factor = _evaluate(_about_half(polynomial), z, square, mm)
        root = mm(root, factor)
    return _symmetric(root) / (_fourth_root(bound) * _fourth_root(scale))


def composite_products(polynomials: tuple[Polynomial, ...]) -> int:
    """Products of m x m matrices in :func:`composite_root`."""
    values = sum((len(polynomial) - 1) // 2 for polynomial in polynomials)
    odd = sum(len(p) > 3 and len(p) % 2 == 0 for p in polynomials)
    return values + odd + 4 * (len(polynomials) - 1)


def _evaluate(coefficients: Polynomial, x: Any, square: Any, mm: Any) -> jax.Array:
    """The polynomial at x, by Horner's rule in ``x^2``, two coefficients at a time."""
    powers = jnp.eye(len(x), dtype=x.dtype), x, square

    def short(some: Polynomial) -> jax.Array:
        return functools.reduce(
            jnp.add, (c * power for c, power in zip(some, powers, strict=False))
        )

    if len(coefficients) <= 3:
        return short(coefficients)
    # The topmost group takes up to three: c0 + c1 x + c2 x^2 needs no product.
    split = len(coefficients) - (3 if len(coefficients) % 2 else 2)
    result = short(coefficients[split:])
    for start in range(split - 2, -1, -2):
        result = short(coefficients[start : start + 2]) + mm(square, result)
    return result


def _about_half(coefficients: Polynomial) -> Polynomial:
    """Coefficients of the same polynomial in ``z = 2 x - 1``."""
    x = np.polynomial.Polynomial((0.5, 0.5))
    return tuple(map(float, np.polynomial.Polynomial(coefficients)(x).coef))


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _symmetric(x: jax.Array) -> jax.Array:
    return (x + x.T) / 2


def _fourth_root(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sqrt(x))
