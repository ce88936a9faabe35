"""The kernel: one approximate inverse fourth root, refreshed by matrix products.

Everything here takes one matrix and is vmapped by the caller. Symbols, as in the
paper (Algorithm 2 and appendix A.1), for the left side of a gradient G, m x n:

    root    L_hat, m x m, about the inverse fourth root of Shampoo's statistic L
    gram    G G^T
    X       root^4 gram
    |X|     the Frobenius norm of X
    beta2   |X| / (|X| + 1)
    ratio   (1 - beta2) / beta2 = 1 / |X|, weight of the gram against the old statistic

The right side is the same with G^T in place of G.

Two orders of products give the same new root: by way of the gram matrix,
``5 m^3`` scalar multiplications after the ``m^2 n`` of the gram, and, for tall G,
by way of G alone, ``7 m^2 n + 2 m n^2`` without a cube of m.

So that a refresh works with all finite gradients, a gradient comes here divided by a
power of two near its largest entry, with that power beside it (:func:`split_scale`),
and roots are divided by one of their own. Such divisions are exact: they change no bit
of the result wherever the plain formula works at all.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax._checks import is_zero

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
    new, accepted = candidate_root(
        root,
        gram,
        scale,
        jnp.trace(gram),
        ratio=ratio,
        damping=damping,
        series=series,
        precision=precision,
    )
    return jnp.where(accepted, new, root)


def candidate_root(
    root: jax.Array,
    gram: jax.Array,
    scale: Any,
    trace: jax.Array,
    *,
    ratio: Any = None,
    damping: Any = 0.0,
    series: tuple[float, ...] = BINOMIAL_SERIES,
    precision: Any = "highest",
) -> tuple[jax.Array, jax.Array]:
    """:func:`refresh_root`'s new root, and whether to accept it; the trace is given."""
    mm = functools.partial(jnp.matmul, precision=precision)
    a, root_scale = split_scale(root.astype(gram.dtype))
    if not is_zero(damping):
        mean = trace / len(gram)
        gram = gram + (damping * mean) * jnp.eye(len(gram), dtype=gram.dtype)
    squared = mm(a, a)
    x = mm(squared, mm(squared, gram))
    norm = jnp.sqrt(jnp.sum(jnp.square(x)))
    step, growth = _step_and_growth(norm, root_scale, scale, ratio)
    # With p(X) = I + X q(X), the new root is growth * (root + root X q(X)).
    correction = mm(a, _times(x, _polynomial(series, x, step, mm), mm))
    new, accepted = _guard(a + correction, growth * root_scale, norm, trace)
    return new.astype(root.dtype), accepted


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
    mm = functools.partial(jnp.matmul, precision=precision)
    a, root_scale = split_scale(root.astype(gradient.dtype))
    b = mm(a, mm(a, mm(a, mm(a, gradient))))
    # X itself is formed only for its norm, since tr(B^T B G^T G), which would cost
    # less, loses twice the digits.
    norm = jnp.sqrt(jnp.sum(jnp.square(mm(b, gradient.T))))
    step, growth = _step_and_growth(norm, root_scale, scale, ratio)
    # X q(X) = b q(w) g^T, with the powers taken of the n x n matrix w = g^T b.
    w = mm(gradient.T, b) if len(series) > 1 else None
    q = _polynomial(series, w, step, mm)
    correction = mm(_times(mm(a, b), q, mm), gradient.T)
    trace = jnp.sum(jnp.square(gradient))
    new, accepted = _guard(a + correction, growth * root_scale, norm, trace)
    return jnp.where(accepted, new.astype(root.dtype), root)


def _step_and_growth(norm: Any, root_scale: Any, scale: Any, ratio: Any) -> Any:
    """The factor of x that makes ``ratio * X`` of it, and ``beta2^(-1/4)``."""
    # X = both^2 x; the scales are multiplied in the order that stays near one.
    both = jnp.maximum(root_scale * scale * root_scale, jnp.finfo(norm.dtype).tiny)
    if ratio is not None:
        return ratio * both * both, _fourth_root(1 + jnp.asarray(ratio, norm.dtype))
    step = jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1), 0)
    inverse = step / both / both  # 1 / |X|
    growth = jnp.where(
        jnp.isfinite(inverse),
        _fourth_root(1 + inverse),
        # Beyond the range of the dtype: (1 + 1/|X|)^(1/4) = |X|^(-1/4), by parts.
        _fourth_root(step) / jnp.sqrt(both),
    )
    return step, growth


def _guard(unit: Any, factor: Any, norm: Any, trace: Any) -> tuple[Any, Any]:
    """``unit * factor``, the new root, lifted if need be; and whether to accept it.

    Where ``|x|``, with a root of largest entry one, is below ``MAX_SPREAD^-4`` of the
    gram's trace, the gradient excites only directions whose root is smaller by
    MAX_SPREAD than the largest. Then all directions are lifted by a multiple of the
    identity: those are kept off zero, and the largest hardly notice. A root that
    would not be finite, or comes from a zero gradient, is not accepted.
    """
    largest = jnp.max(jnp.abs(unit))
    unseen = norm < MAX_SPREAD**-4 * trace
    lift = jnp.where(unseen, largest / MAX_SPREAD, 0)
    new = (unit + lift * jnp.eye(len(unit), dtype=unit.dtype)) * factor
    return new, jnp.isfinite(largest * factor) & (trace > 0)


def split_scale(x: jax.Array, axis: Any = None) -> tuple[jax.Array, jax.Array]:
    """Splits x into ``unit * scale``, the largest entry of unit being about one.

    The scale is a power of two, so nothing is rounded.

    Args:
      x: array.
      axis: axes over which the largest entry is taken; they are kept, with length
        one. ``None`` is all, and gives a scalar.

    Returns:
      Unit and scale.
    """
    # If x is itself a quotient a / b, XLA would make a / (b * scale) of the division
    # below, and b * scale may underflow. The barrier hides from it what x is.
    x = jax.lax.optimization_barrier(x)
    keepdims = axis is not None
    scale = nearest_power_of_two(jnp.max(jnp.abs(x), axis, keepdims=keepdims))
    return x / scale, scale


def nearest_power_of_two(x: jax.Array) -> jax.Array:
    """The power of two nearest to x, kept within the normal numbers; 1 for 0."""
    info = jnp.finfo(x.dtype)
    x = jnp.clip(jnp.where(x == 0, 1, x), info.tiny, info.max / 4)
    return jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=0)


def _fourth_root(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sqrt(x))


def _polynomial(factors: tuple[float, ...], x: Any, step: Any, mm: Any) -> jax.Array:
    """``factors[0] step I + factors[1] step^2 x + ...`` by Horner's rule.

    That is ``step * q(step * x)``, without ever forming ``step * x``. With one factor,
    a number takes the place of its multiple of the identity.
    """
    if len(factors) == 1:
        return factors[0] * step
    eye = jnp.eye(len(x), dtype=x.dtype)
    last = len(factors)
    result = (factors[-2] * step ** (last - 1)) * eye + (factors[-1] * step**last) * x
    for power in range(last - 2, 0, -1):
        result = (factors[power - 1] * step**power) * eye + mm(x, result)
    return result


def _times(x: jax.Array, y: jax.Array, mm: Any) -> jax.Array:
    """``x y``, where y is a matrix or a number."""
    return mm(x, y) if y.ndim else x * y
