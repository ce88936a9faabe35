"""The inverse square root of a symmetric matrix by a composition of polynomials.

Everything here takes one symmetric matrix; the caller vmaps it. With

    x_0 = statistic / bound,      bound >= its largest eigenvalue
    t_k = p_k(x_k)                a polynomial
    x_{k+1} = x_k t_k^2           nearer to the identity than x_k

the product ``t_0 t_1 ...`` is about ``x_0^(-1/2)``. All factors are polynomials in one
matrix: they commute, and their product is symmetric and positive wherever they are.
``docs/whitening.md`` derives the polynomials.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._checks import check_coefficients
from jorge_optax._numerics import split_scale
from jorge_optax._types import Matmul, Precision

Polynomial = tuple[float, ...]

# Coefficients of 1, x, x^2, ...: the best of their degrees for eigenvalues from 3e-5 to
# 1, from python -m benchmarks.numerics.design.
POLYNOMIALS: tuple[Polynomial, ...] = (
    (7.53524, -72.97169, 242.03759, -310.6193, 135.01815),
    (7.05193, -60.73338, 194.19122, -244.78354, 105.27378),
    (4.67257, -18.86779, 42.44896, -43.76413, 16.5399),
)


@dataclasses.dataclass(frozen=True)
class PolynomialRoot:
    """Approximates ``A^(-1/2)`` by a composition of polynomials in A.

    Eigenvalues of A that are too small against the largest one for the polynomials get
    the root's largest eigenvalue.

    Attributes:
      polynomials: The polynomials in the order of application, each the coefficients
        of 1, x, x^2, ...; positive on [0, 1]. ``None`` is the package's choice.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jorge_optax import PolynomialRoot
      >>> root = PolynomialRoot()(jnp.diag(jnp.array([1.0, 4.0])), "highest")
      >>> print(jnp.diag(root).round(1))
      [1.  0.5]
    """

    polynomials: tuple[Polynomial, ...] | None = None

    def __post_init__(self) -> None:
        """Checks that the root is positive definite."""
        name = "PolynomialRoot.polynomials"
        given = self.polynomials
        if given is not None and not given:
            raise ValueError(f"{name} must hold at least one polynomial.")
        checked = tuple(
            check_coefficients(name, p, at_least=2) for p in given or POLYNOMIALS
        )
        x = np.linspace(0, 1, 1001) ** 4
        for polynomial in checked:
            factor = np.polynomial.polynomial.polyval(x, polynomial)
            if np.min(factor) <= 0:
                raise ValueError(
                    f"{name} must be positive on the values that the polynomials "
                    f"before it take on [0, 1], but {polynomial} falls to "
                    f"{np.min(factor):.3g}: roots would not be positive definite."
                )
            x = x * factor**2
        object.__setattr__(self, "polynomials", checked)

    def __call__(self, matrix: jax.Array, precision: Precision) -> jax.Array:
        """Returns the root of one symmetric positive semidefinite matrix."""
        return inverse_root(matrix, self.polynomials or POLYNOMIALS, precision)


def inverse_root(
    statistic: jax.Array, polynomials: tuple[Polynomial, ...], precision: Precision
) -> jax.Array:
    """Evaluates the composition at one symmetric matrix, by matrix products alone."""
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
        x = _symmetric(mm(factor, mm(x, factor)))
        z = 2 * x - eye
        square = mm(z, z) if len(polynomial) > 2 else None
        factor = _evaluate(_about_half(polynomial), z, square, mm)
        root = mm(root, factor)
    return _symmetric(root) / (jnp.sqrt(bound) * jnp.sqrt(scale))


def count_products(polynomials: tuple[Polynomial, ...]) -> int:
    """Counts the products of m x m matrices in :func:`inverse_root`."""
    values = sum((len(polynomial) - 1) // 2 for polynomial in polynomials)
    odd = sum(len(p) > 3 and len(p) % 2 == 0 for p in polynomials)
    return values + odd + 3 * (len(polynomials) - 1)


def _evaluate(
    coefficients: Polynomial, x: jax.Array, square: jax.Array | None, mm: Matmul
) -> jax.Array:
    """Evaluates a polynomial by Horner's rule in ``x^2``, two coefficients each."""
    powers = [jnp.eye(len(x), dtype=x.dtype), x]
    if square is not None:
        powers.append(square)

    def short(some: Polynomial) -> jax.Array:
        return functools.reduce(
            jnp.add, (c * power for c, power in zip(some, powers, strict=False))
        )

    if len(coefficients) <= 3:
        return short(coefficients)
    # The topmost group takes up to three: c0 + c1 x + c2 x^2 needs no product.
    split = len(coefficients) - (3 if len(coefficients) % 2 else 2)
    result = short(coefficients[split:])
    assert square is not None
    for start in range(split - 2, -1, -2):
        result = short(coefficients[start : start + 2]) + mm(square, result)
    return result


def _about_half(coefficients: Polynomial) -> Polynomial:
    """Returns the coefficients of the same polynomial in ``z = 2 x - 1``."""
    x = np.polynomial.Polynomial((0.5, 0.5))
    return tuple(map(float, np.polynomial.Polynomial(coefficients)(x).coef))


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x)))


def _symmetric(x: jax.Array) -> jax.Array:
    return (x + x.T) / 2
