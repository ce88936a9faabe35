"""A prototype: the inverse fourth root by a composition of polynomials.

With Shampoo's statistics it made the composite rule, which the package no longer has
(docs/composite.md). The laboratory goes on measuring it.

    t_k = p_k(x_k),  x_{k+1} = t_k^2 x_k t_k^2,  x_0 = statistic / bound
    root = bound^(-1/4) t_0 t_1 ...
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.shared.shampoo import ShampooRule

Polynomial = tuple[float, ...]

# Coefficients of 1, x, x^2, ...; design.py finds them.
POLYNOMIALS: tuple[Polynomial, ...] = (
    (1.8336, -1.6979),
    (3.13095, -27.1517, 97.9482, -133.485, 60.5574),
    (2.5463, -9.2422, 24.4787, -28.527, 11.7813),
)


@dataclasses.dataclass(frozen=True)
class FourthRoot:
    """Approximates ``A^(-1/4)``.

    Attributes:
      polynomials: In the order of application; positive on [0, 1].
    """

    polynomials: tuple[Polynomial, ...] = POLYNOMIALS

    def __call__(self, matrix: jax.Array, precision: Any) -> jax.Array:
        """Returns the root of one symmetric positive semidefinite matrix."""
        mm = functools.partial(jnp.matmul, precision=precision)
        eye = jnp.eye(len(matrix), dtype=matrix.dtype)
        tiny = jnp.finfo(matrix.dtype).tiny
        scale = jnp.maximum(jnp.max(jnp.abs(matrix)), tiny)
        scale = jax.lax.reduce_precision(scale, jnp.finfo(scale.dtype).nexp, 0)
        x = matrix / scale
        # Both norms bound the largest eigenvalue; the second is the tighter one.
        square = mm(x, x) if len(self.polynomials[0]) > 2 else None
        bound = _norm(x) if square is None else jnp.sqrt(_norm(square))
        bound = jnp.where(bound > 0, bound, 1)
        x = x / bound
        if square is not None:
            square = square * (4 / jnp.square(bound)) - 4 * x + eye
        root = factor = _evaluate(self.polynomials[0], 2 * x - eye, square, mm)
        for polynomial in self.polynomials[1:]:
            half = mm(factor, factor)
            x = _symmetric(mm(half, mm(x, half)))
            z = 2 * x - eye
            square = mm(z, z) if len(polynomial) > 2 else None
            factor = _evaluate(polynomial, z, square, mm)
            root = mm(root, factor)
        return _symmetric(root) / (bound**0.25 * scale**0.25)


def composite_rule(
    polynomials: tuple[Polynomial, ...] = POLYNOMIALS, **options: Any
) -> ShampooRule:
    """Returns the composite rule: Shampoo's, with these roots."""
    return ShampooRule(inverse_root=FourthRoot(polynomials), **options)


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
