"""Another order of products for the long side of thin tiles, with the same result.

By way of the Gram matrix, a refresh of the side m of an m x n tile takes ``m^2 n``
scalar multiplications for that matrix and ``5 m^3`` after it. For a thin tile, with m
much longer than n, products with the gradient G itself are cheaper: they take
``7 m^2 n + 2 m n^2``.
"""

from __future__ import annotations

import functools

import jax

from jorge_optax import _algorithm
from jorge_optax._types import Matmul

# A stack's side is refreshed in this order where that saves at least this share of all
# multiplications of a refresh.
WORTH_ITS_OWN_ORDER = 0.01


def excitation(
    root: jax.Array, gradient: jax.Array, matmul: Matmul
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns ``X = root^4 G G^T``, its factors ``root^4 G`` and G, and ``root G``."""
    once = b = matmul(root, gradient)
    for _ in range(3):
        b = matmul(root, b)
    # X is formed only for its norm, since tr(B^T B G^T G), which would cost less,
    # loses twice the digits.
    return matmul(b, gradient.mT), b, gradient, once


def expand(
    root: jax.Array,
    factored: tuple[jax.Array, ...],
    ratio: jax.Array,
    matmul: Matmul,
    series: tuple[float, ...],
) -> jax.Array:
    """Does what ``_algorithm.expand`` does, for X as ``b G^T``.

    Since ``X q(X) = b q(w) G^T``, the powers are taken of the n x n matrix
    ``w = G^T b``.
    """
    _, b, gradient, *_ = factored
    powers = [factor * ratio**k for k, factor in enumerate(series, start=1)]
    product = matmul(root, b)
    if powers[1:]:
        w = matmul(gradient.mT, b)
        product = matmul(product, _algorithm.horner(powers, w, matmul))
    else:
        product = powers[0] * product
    return root + matmul(product, gradient.mT)


def gram_multiplications(m: int, n: int, terms: int = 2) -> int:
    """Counts the multiplications of a refresh of the side m by its Gram matrix."""
    return m * m * n + (3 + terms) * m**3


def thin_multiplications(m: int, n: int, terms: int = 2) -> int:
    """Counts the multiplications of a refresh of the side m without it."""
    powers = 2 * m * n * n + (terms - 2) * n**3 if terms > 1 else 0
    return 7 * m * m * n + powers


@functools.lru_cache(maxsize=256)
def choose_thin(
    shapes: frozenset[tuple[int, int, int]], terms: int, damps: bool = False
) -> frozenset[tuple[int, int]]:
    """Chooses the tile shapes whose long side is refreshed without a Gram matrix.

    Args:
      shapes: Number, rows and columns of the tiles of each stack.
      terms: Number of terms of the series.
      damps: Whether there is damping, which needs the Gram matrix: then none is chosen.

    Returns:
      Rows and columns of the chosen tiles.
    """
    if damps:
        return frozenset()
    total = 0
    saved = {}
    for n, rows, columns in shapes:
        long, short = max(rows, columns), min(rows, columns)
        by_gram = gram_multiplications(long, short, terms)
        total += n * (by_gram + gram_multiplications(short, long, terms))
        less = by_gram - thin_multiplications(long, short, terms)
        saved[rows, columns] = n * less
    return frozenset(
        tile for tile, less in saved.items() if less >= WORTH_ITS_OWN_ORDER * total
    )
