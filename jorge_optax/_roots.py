"""The kernel: approximate inverse fourth roots, refreshed by matrix products.

Symbols, as in the paper (Algorithm 2 and appendix A.1), for the left side of a
gradient G, m x n:

    root    L_hat, m x m, about the inverse fourth root of Shampoo's statistic L
    gram    G G^T
    X       root^4 gram
    |X|     the Frobenius norm of X
    beta2   |X| / (|X| + 1)
    ratio   (1 - beta2) / beta2 = 1 / |X|, weight of the gram against the old statistic

The right side is the same with G^T in place of G. :func:`refresh_root` has the formula.

Two orders of products give the same new root: by way of the gram matrix,
``5 m^3`` scalar multiplications after the ``m^2 n`` of the gram, and, for tall G,
by way of G alone, ``7 m^2 n + 2 m n^2`` without a cube of m.

So that a refresh works with all finite gradients, a gradient comes here divided by a
power of two near its largest entry, with that power beside it, and roots are divided by
one of their own. Such divisions are exact: they change no bit of the result wherever
the plain formula works at all.

Roots come in batches of one length of side. What is done with one number a matrix is
done for all batches at once (:func:`~jorge_optax._scales.together`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._checks import is_zero
from jorge_optax._scales import MATRIX, column, split_scales, together

# (1 + x)^(-1/4) = 1 - x/4 + 5 x^2/32 - ...: the factors of x, x^2, ...
BINOMIAL_SERIES = (-1 / 4, 5 / 32)

# A direction that no gradient excites grows against the others at each refresh. Once
# it is this much larger than those that are excited, it may not grow further: 2**10
# in a root is 2**40 in the statistic, well beyond what float32 tells apart.
MAX_SPREAD = 2.0**10


class Roots(NamedTuple):
    """The two roots of a tile, or of a stack of tiles.

    Attributes:
      left: ``[R, R]``, or ``[n, R, R]`` for a stack.
      right: ``[C, C]``, or ``[n, C, C]`` for a stack.
    """

    left: Any
    right: Any


def apply_roots(roots: Roots, gradient: jax.Array, *, precision: Any) -> jax.Array:
    """The preconditioned gradient, ``left @ gradient @ right`` (line 11)."""
    dtype = gradient.dtype
    half = jnp.matmul(roots.left.astype(dtype), gradient, precision=precision)
    return jnp.matmul(half, roots.right.astype(dtype), precision=precision)


def refresh_root(
    root: jax.Array,
    gram: jax.Array,
    scale: Any = 1.0,
    *,
    ratio: Any = None,
    damping: Any = 0.0,
    series: tuple[float, ...] = BINOMIAL_SERIES,
    precision: Any = "highest",
) -> jax.Array:
    """Turns ``L^(-1/4)`` into (about) ``(beta2 L + (1 - beta2) gram)^(-1/4)``.

    With ``root = L^(-1/4)`` and ``X = root^4 gram`` the new root is

        beta2^(-1/4) root (I + ratio X)^(-1/4),    ratio = (1 - beta2) / beta2,

    and the last factor is expanded as ``I + series[0] ratio X + ...``. Exact up to
    the dropped terms if L and the gram commute; otherwise the factorisation itself
    is off at first order in ratio. The series converges while ``|ratio X| < 1``.

    Args:
      root: the root, m x m.
      gram: G G^T, m x m, for G divided by scale.
      scale: a power of two.
      ratio: weight of the gram; ``None`` is the paper's choice, ``1 / |X|``.
      damping: ``damping * tr(gram) / m`` is added to the diagonal of the gram.
      series: factors of x, x^2, ... in the expansion of ``(1 + x)^(-1/4)``.
      precision: of the matrix products.

    Returns:
      The new root; the old one where the gram is zero or anything is not finite.
    """
    trace = jnp.trace(gram)
    if not is_zero(damping):
        gram = damped(gram, trace, damping)
    side = Side(root, gram, jnp.asarray(scale, gram.dtype), trace)
    return _refresh_one(side, False, ratio, series, precision)


def refresh_root_thin(
    root: jax.Array,
    gradient: jax.Array,
    scale: Any = 1.0,
    *,
    ratio: Any = None,
    series: tuple[float, ...] = BINOMIAL_SERIES,
    precision: Any = "highest",
) -> jax.Array:
    """The same as :func:`refresh_root`, from a tall G and without its gram.

    Args:
      root: the root, m x m.
      gradient: G, m x n, divided by scale.
      scale: a power of two.
      ratio: as in :func:`refresh_root`.
      series: as in :func:`refresh_root`.
      precision: of the matrix products.

    Returns:
      The new root.
    """
    trace = jnp.sum(jnp.square(gradient))
    side = Side(root, gradient, jnp.asarray(scale, gradient.dtype), trace)
    return _refresh_one(side, True, ratio, series, precision)


class Side(NamedTuple):
    """Roots of one length of side, and what they are refreshed from.

    Attributes:
      root: ``[n, m, m]``.
      data: grams ``[n, m, m]``, or gradients ``[n, m, columns]`` of tall tiles, of
        gradients divided by scale.
      scale: ``[n]``, powers of two.
      trace: ``[n]``, of the grams, before damping.
    """

    root: jax.Array
    data: jax.Array
    scale: jax.Array
    trace: jax.Array


def damped(gram: jax.Array, trace: jax.Array, damping: Any) -> jax.Array:
    """Adds ``damping * trace / m`` to the diagonal."""
    eye = _eye(gram)
    return gram + column(damping * trace / eye.shape[-1]) * eye


def refresh_roots(
    by_gram: Sequence[Side],
    thin: Sequence[Side] = (),
    *,
    ratio: Any = None,
    series: tuple[float, ...] = BINOMIAL_SERIES,
    precision: Any = "highest",
) -> list[tuple[jax.Array, jax.Array]]:
    """:func:`refresh_root` and :func:`refresh_root_thin` of many batches.

    Args:
      by_gram: the sides whose data are grams.
      thin: the sides whose data are gradients.
      ratio: as in :func:`refresh_root`.
      series: as in :func:`refresh_root`.
      precision: of the matrix products.

    Returns:
      For each side, those by gram first, its new roots, and ``[n]`` whether to accept
      them.
    """
    mm = functools.partial(jnp.matmul, precision=precision)
    orders = [_by_gram] * len(by_gram) + [_thin] * len(thin)
    sides = (*by_gram, *thin)
    # Each root over its scale: a, with largest entry near one.
    split = split_scales([side.root.astype(side.data.dtype) for side in sides])
    units, scales = zip(*split, strict=True)
    begun = [
        begin(a, side.data, mm)
        for (begin, _), a, side in zip(orders, units, sides, strict=True)
    ]
    norms = [jnp.sqrt(jnp.sum(jnp.square(x), MATRIX)) for x, _ in begun]
    steps = together(
        functools.partial(_step_and_growth, ratio=ratio),
        [
            (norm, root_scale, side.scale)
            for norm, root_scale, side in zip(norms, scales, sides, strict=True)
        ],
    )
    # With p(X) = I + X q(X), the new root is growth * (root + root X q(X)).
    new = [
        a + end(a, work, side.data, series, column(step), mm)
        for (_, end), a, (_, work), side, (step, _) in zip(
            orders, units, begun, sides, steps, strict=True
        )
    ]
    guards = together(
        _guard,
        [
            (jnp.max(jnp.abs(unit), MATRIX), growth * root_scale, norm, side.trace)
            for unit, (_, growth), root_scale, norm, side in zip(
                new, steps, scales, norms, sides, strict=True
            )
        ],
    )
    return [
        (_lifted(unit, lift, factor).astype(side.root.dtype), accepted)
        for unit, (lift, factor, accepted), side in zip(new, guards, sides, strict=True)
    ]


def _begin_by_gram(a: jax.Array, gram: jax.Array, mm: Any) -> tuple[Any, Any]:
    """``x``, that is X without its scales, and what :func:`_end_by_gram` needs."""
    squared = mm(a, a)
    x = mm(squared, mm(squared, gram))
    return x, x


def _end_by_gram(a: Any, x: Any, gram: Any, series: Any, step: Any, mm: Any) -> Any:
    """``a X q(X)``."""
    del gram
    return mm(a, _times(x, _polynomial(series, x, step, mm), mm))


def _begin_thin(a: jax.Array, gradient: jax.Array, mm: Any) -> tuple[Any, Any]:
    b = mm(a, mm(a, mm(a, mm(a, gradient))))
    # x itself is formed only for its norm, since tr(B^T B G^T G), which would cost
    # less, loses twice the digits.
    return mm(b, gradient.mT), b


def _end_thin(a: Any, b: Any, gradient: Any, series: Any, step: Any, mm: Any) -> Any:
    """X q(X) is b q(w) g^T, with the powers taken of the n x n matrix w = g^T b."""
    w = mm(gradient.mT, b) if len(series) > 1 else None
    q = _polynomial(series, w, step, mm)
    return mm(_times(mm(a, b), q, mm), gradient.mT)


_by_gram, _thin = (_begin_by_gram, _end_by_gram), (_begin_thin, _end_thin)


def _refresh_one(side: Side, thin: bool, ratio: Any, series: Any, precision: Any):
    batch = [Side(*(x[None] for x in side))]
    options: Any = dict(ratio=ratio, series=series, precision=precision)
    sides = ([], batch) if thin else (batch, [])
    [(new, accepted)] = refresh_roots(*sides, **options)
    return jnp.where(accepted[0], new[0], side.root)


def _step_and_growth(norm: Any, root_scale: Any, scale: Any, ratio: Any) -> Any:
    """The factor of x that makes ``ratio * X`` of it, and ``beta2^(-1/4)``."""
    # X = both^2 x; the scales are multiplied in the order that stays near one.
    both = jnp.maximum(root_scale * scale * root_scale, jnp.finfo(norm.dtype).tiny)
    if ratio is not None:
        growth = _fourth_root(1 + jnp.asarray(ratio, norm.dtype))
        return ratio * both * both, jnp.broadcast_to(growth, norm.shape)
    step = jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1), 0)
    inverse = step / both / both  # 1 / |X|
    growth = jnp.where(
        jnp.isfinite(inverse),
        _fourth_root(1 + inverse),
        # Beyond the range of the dtype: (1 + 1/|X|)^(1/4) = |X|^(-1/4), by parts.
        _fourth_root(step) / jnp.sqrt(both),
    )
    return step, growth


def _guard(largest: Any, factor: Any, norm: Any, trace: Any) -> tuple[Any, Any, Any]:
    """Lift, factor, and whether to accept a root ``unit * factor``.

    Where ``|x|``, with a root of largest entry one, is below ``MAX_SPREAD^-4`` of the
    gram's trace, the gradient excites only directions whose root is smaller by
    MAX_SPREAD than the largest. Then all directions are lifted by a multiple of the
    identity: those are kept off zero, and the largest hardly notice. A root that
    would not be finite, or comes from a zero gradient, is not accepted.
    """
    unseen = norm < MAX_SPREAD**-4 * trace
    lift = jnp.where(unseen, largest / MAX_SPREAD, 0)
    return lift, factor, jnp.isfinite(largest * factor) & (trace > 0)


def _lifted(unit: jax.Array, lift: jax.Array, factor: jax.Array) -> jax.Array:
    return (unit + column(lift) * _eye(unit)) * column(factor)


def _eye(like: jax.Array) -> jax.Array:
    eye = jnp.eye(like.shape[-1], dtype=like.dtype)
    return eye.reshape((1,) * (like.ndim - 2) + eye.shape)


def _fourth_root(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sqrt(x))


def _polynomial(factors: tuple[float, ...], x: Any, step: Any, mm: Any) -> jax.Array:
    """``factors[0] step I + factors[1] step^2 x + ...`` by Horner's rule.

    That is ``step * q(step * x)``, without ever forming ``step * x``. With one factor,
    numbers take the place of their multiples of the identity.
    """
    if len(factors) == 1:
        return factors[0] * step
    eye = _eye(x)
    last = len(factors)
    result = (factors[-2] * step ** (last - 1)) * eye + (factors[-1] * step**last) * x
    for power in range(last - 2, 0, -1):
        result = (factors[power - 1] * step**power) * eye + mm(x, result)
    return result


def _times(x: jax.Array, y: jax.Array, mm: Any) -> jax.Array:
    """``x y``, where y are matrices or numbers."""
    return x * y if y.shape[-1] == 1 else mm(x, y)
