"""The paper's Algorithm 2, for one matrix; the caller vmaps it over a stack of tiles.

Symbols, for the left side of a gradient G, m x n (the right side has G^T for G):

    root    L_hat, m x m, about the inverse fourth root of Shampoo's statistic L
    gram    G G^T
    x       X = root^4 gram
    ratio   (1 - beta2) / beta2, the weight of the Gram matrix against the statistic
    growth  beta2^(-1/4)

The new root is ``growth(ratio) * expand(root, x, ratio)``. Where L and the Gram matrix
commute, ``(beta2 L + (1 - beta2) gram)^(-1/4) = growth root (I + ratio X)^(-1/4)``, and
``expand`` truncates the binomial series of the last factor.

Training runs these functions on roots and gradients divided by powers of two (see
``_guards.py``): ``X / |X|`` does not depend on these scales.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jorge_optax._types import Dtype, Matmul, Scalar

# (1 + x)^(-1/4) = 1 - x/4 + 5 x^2/32 - ...: the factors of x, x^2, ...
BINOMIAL_SERIES = (-1 / 4, 5 / 32)


def initial_root(side: int, eps: Scalar, dtype: Dtype) -> jax.Array:
    """Line 1: ``eps^(-1/4) I``, the root of the statistic ``eps I``."""
    scale = jnp.asarray(eps, dtype) ** jnp.asarray(-0.25, dtype)
    return scale * jnp.eye(side, dtype=dtype)


def excitation(root: jax.Array, gram: jax.Array, matmul: Matmul) -> jax.Array:
    """Lines 5 and 7: ``X = root^4 gram``."""
    squared = matmul(root, root)
    return matmul(squared, matmul(squared, gram))


def ratio(norm: jax.Array) -> jax.Array:
    """Appendix A.1: for ``beta2 = |X| / (|X| + 1)`` the ratio is ``1 / |X|``."""
    return 1 / norm


def growth(ratio: jax.Array) -> jax.Array:
    """Lines 6 and 8: ``beta2^(-1/4)``, where ``1 / beta2 = 1 + ratio``."""
    return jnp.sqrt(jnp.sqrt(1 + ratio))


def expand(
    root: jax.Array,
    x: jax.Array,
    ratio: jax.Array,
    matmul: Matmul,
    series: tuple[float, ...] = BINOMIAL_SERIES,
) -> jax.Array:
    """Lines 6 and 8: ``root (I + series[0] ratio X + series[1] (ratio X)^2 + ...)``."""
    powers = [factor * ratio**k for k, factor in enumerate(series, start=1)]
    # I + X q(X), so that one term needs no product for q.
    tail = matmul(x, horner(powers, x, matmul)) if powers[1:] else powers[0] * x
    return root + matmul(root, tail)


def horner(powers: list[jax.Array], x: jax.Array, matmul: Matmul) -> jax.Array:
    """Evaluates ``q(x) = powers[0] I + powers[1] x + ...`` of two terms or more."""
    eye = jnp.eye(len(x), dtype=x.dtype)
    q = powers[-2] * eye + powers[-1] * x
    for factor in reversed(powers[:-2]):
        q = factor * eye + matmul(x, q)
    return q


def precondition(
    left: jax.Array, gradient: jax.Array, right: jax.Array, matmul: Matmul
) -> jax.Array:
    """Line 11: ``left G right``."""
    return matmul(matmul(left, gradient), right)
