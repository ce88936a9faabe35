"""Prototypes: inverse roots of a symmetric matrix by compositions of polynomials.

    t_k = p_k(x_k),  x_{k+1} = x_k t_k^order,  x_0 = statistic / bound
    root = bound^(-1/order) t_0 t_1 ...

With Shampoo's statistics the fourth root made the composite rule, which the package no
longer has (docs/composite.md), and the square root a whitening rule with statistics,
which the package's rule replaced (docs/whitening.md). The laboratory and the ablation
go on measuring them.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.shared.shampoo import ShampooRule

Polynomial = tuple[float, ...]

# Coefficients of 1, x, x^2, ... by the order of the root; design.py finds them.
POLYNOMIALS: dict[int, tuple[Polynomial, ...]] = {
    2: (
        (7.53524, -72.97169, 242.03759, -310.6193, 135.01815),
        (7.05193, -60.73338, 194.19122, -244.78354, 105.27378),
        (4.67257, -18.86779, 42.44896, -43.76413, 16.5399),
    ),
    4: (
        (1.8336, -1.6979),
        (3.13095, -27.1517, 97.9482, -133.485, 60.5574),
        (2.5463, -9.2422, 24.4787, -28.527, 11.7813),
    ),
}


@dataclasses.dataclass(frozen=True)
class PolynomialRoot:
    """Approximates ``A^(-1/order)``.

    Attributes:
      order: 2 or 4.
      polynomials: In the order of application; positive on [0, 1]. None is the best of
        three for eigenvalues from 3e-5 to 1.
    """

    order: int = 4
    polynomials: tuple[Polynomial, ...] | None = None

    def __call__(self, matrix: jax.Array, precision: Any) -> jax.Array:
        """Returns the root of one symmetric positive semidefinite matrix."""
        mm = functools.partial(jnp.matmul, precision=precision)
        polynomials = self.polynomials or POLYNOMIALS[self.order]
        eye = jnp.eye(len(matrix), dtype=matrix.dtype)
        tiny = jnp.finfo(matrix.dtype).tiny
        scale = jnp.maximum(jnp.max(jnp.abs(matrix)), tiny)
        scale = jax.lax.reduce_precision(scale, jnp.finfo(scale.dtype).nexp, 0)
        x = matrix / scale
        # Both norms bound the largest eigenvalue; the second is the tighter one.
        square = mm(x, x) if len(polynomials[0]) > 2 else None
        bound = _norm(x) if square is None else jnp.sqrt(_norm(square))
        bound = jnp.where(bound > 0, bound, 1)
        x = x / bound
        if square is not None:
            square = square * (4 / jnp.square(bound)) - 4 * x + eye
        root = factor = _evaluate(polynomials[0], 2 * x - eye, square, mm)
        for polynomial in polynomials[1:]:
            half = mm(factor, factor) if self.order == 4 else factor
            x = _symmetric(mm(half, mm(x, half)))
            z = 2 * x - eye
            square = mm(z, z) if len(polynomial) > 2 else None
            factor = _evaluate(polynomial, z, square, mm)
            root = mm(root, factor)
        return _symmetric(root) / (
            bound ** (1 / self.order) * scale ** (1 / self.order)
        )


def composite_rule(
    polynomials: tuple[Polynomial, ...] | None = None, **options: Any
) -> ShampooRule:
    """Returns the composite rule: Shampoo's, with these roots."""
    return ShampooRule(inverse_root=PolynomialRoot(4, polynomials), **options)


def count_products(polynomials: tuple[Polynomial, ...], order: int) -> int:
    """Counts the products of m x m matrices in a root."""
    values = sum((len(polynomial) - 1) // 2 for polynomial in polynomials)
    odd = sum(len(p) > 3 and len(p) % 2 == 0 for p in polynomials)
    return values + odd + (order // 2 + 2) * (len(polynomials) - 1)


def _evaluate(coefficients: Polynomial, z: Any, square: Any, mm: Any) -> jax.Array:
    """Evaluates a polynomial of x at ``z = 2 x - 1``, two coefficients a product."""
    about_half = np.polynomial.Polynomial(coefficients)(
        np.polynomial.Polynomial((0.5, 0.5))
    )
    c = [float(value) for value in about_half.coef]
    powers = (jnp.eye(len(z), dtype=z.dtype), z, square)
    split = max(0, len(c) - (3 if len(c) % 2 else 2))
    result = c[split] * powers[0]
    for a, power in zip(c[split + 1 :], powers[1:], strict=False):
        result = result + a * power
    for start in range(split - 2, -1, -2):
        result = c[start] * powers[0] + c[start + 1] * z + mm(square, result)
    return result


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _symmetric(x: jax.Array) -> jax.Array:
    return (x + x.T) / 2
