"""Guards of the paper's rule: range of the numbers, spread and sign of the roots.

All of them are inactive, bit for bit, wherever the plain formula of ``_algorithm.py``
works. ``docs/deviations.md`` derives them. Those of a refresh take vectors with one
entry a matrix; :func:`keep_descent` guards every step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jorge_optax import _algorithm
from jorge_optax._numerics import cut_off, hide_origin, safe_sqrt
from jorge_optax._types import Dtype, Sides

# A direction that no gradient excites grows against the others at each refresh. Once
# it is this much larger than those that are excited, it may not grow further: 2**10
# in a root is 2**40 in the statistic, well beyond what float32 can resolve.
MAX_SPREAD = 2.0**10


def ratio_and_growth(
    norm: jax.Array, root_scale: jax.Array, scale: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Computes ratio and growth from the norm of a scaled X, whatever the scales.

    Args:
      norm: Norm of ``x = X / (root_scale^4 scale^2)``.
      root_scale: The power of two that the root was divided by.
      scale: The power of two that the gradient was divided by.

    Returns:
      The factor that turns x into ``ratio * X``, 0 for a zero gradient, and the growth.
    """
    # X = both^2 x; the scales are multiplied in the order that stays near one.
    both = jnp.maximum(root_scale * scale * root_scale, jnp.finfo(norm.dtype).tiny)
    step = jnp.where(norm > 0, _algorithm.ratio(jnp.where(norm > 0, norm, 1)), 0)
    ratio = hide_origin(step / both) / both  # never step / (both * both)
    in_range = jnp.isfinite(ratio)
    growth = jnp.where(
        in_range,
        # The branch not taken is finite, too, for the sake of derivatives.
        _algorithm.growth(jnp.where(in_range, ratio, 0)),
        # Out of the dtype's range: (1 + 1/|X|)^(1/4) = |X|^(-1/4), factor by factor.
        safe_sqrt(safe_sqrt(step)) / jnp.sqrt(both),
    )
    return step, growth


def lift_and_acceptance(
    largest: jax.Array, factor: jax.Array, norm: jax.Array, trace: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Decides how far to lift a new root ``unit * factor``, and whether to accept it.

    Where ``|x|``, with a root of largest entry one, is below ``MAX_SPREAD^-4`` of the
    trace of the Gram matrix, the gradient excites only directions whose root is smaller
    by MAX_SPREAD than the largest. Then a multiple of the identity is added to the
    root: it keeps those directions off zero, and is negligible to the largest ones. A
    root that would not be finite, or comes from a zero gradient, is not accepted.

    Args:
      largest: Largest entry of unit, in magnitude.
      factor: Growth times the scale of the root.
      norm: Norm of the scaled X.
      trace: Trace of the Gram matrix of the scaled gradient.

    Returns:
      The multiple of the identity to add to unit, and whether to accept the root.
    """
    unseen = norm < MAX_SPREAD**-4 * trace
    lift = jnp.where(unseen, largest / MAX_SPREAD, 0)
    return lift, jnp.isfinite(largest * factor) & (trace > 0)


def is_lost(product: jax.Array, trace: jax.Array, dtype: Dtype) -> jax.Array:
    """Decides whether a root has lost the directions that its gradient excites.

    ``<G, root G> / |G|^2`` is the mean of the root over the gradient's directions. In a
    positive definite root it is positive. Below the rounding errors of the largest
    entries, which the root accumulates from refresh to refresh, it means nothing.

    Args:
      product: ``<G, root G>``, for a root of largest entry one.
      trace: ``|G|^2``.
      dtype: Dtype that the root is kept in.

    Returns:
      Whether the root is to start anew.
    """
    rounding = 2 * float(jnp.finfo(dtype).eps)
    return (product <= rounding * trace) & jnp.isfinite(trace)


def restart_scale(trace: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns the multiple of the identity that a root starts anew as.

    It is the root of the statistic ``|G|^2 I``, for which ``|X|`` is about one: that is
    where the paper's dynamic beta2 keeps it.

    Args:
      trace: ``|G|^2``, of the gradient divided by scale.
      scale: The power of two.
    """
    return 1 / (jnp.sqrt(jnp.sqrt(jnp.where(trace > 0, trace, 1))) * jnp.sqrt(scale))


def keep_descent(roots: Sides, matrix: jax.Array, direction: jax.Array) -> jax.Array:
    """Replaces a direction that does not descend, or is out of range, by the matrix.

    A tile keeps its direction D if ``<G, D>`` is positive and finite, for the matrix G
    that the roots were applied to. Else it takes G: as it is if the product has
    overflowed, and at the scale that the roots give it if the product is not positive.

    Args:
      roots: The roots of a stack.
      matrix: What the roots were applied to, ``[n, R, C]``.
      direction: What the roots made of it.

    Returns:
      The directions.
    """
    product = jnp.sum(matrix * direction, (1, 2), keepdims=True)
    finite = jnp.isfinite(product)
    # One entry stands for a root: a norm would be one kernel more in every step.
    left, right = (
        jnp.where(finite, jnp.abs(root[:, :1, :1].astype(direction.dtype)), 1.0)
        for root in roots
    )
    descends = jnp.broadcast_to(finite & (product > 0), direction.shape)
    # One after the other: the product of two large roots would overflow, and infinity
    # times a zero of the matrix is NaN.
    return jax.lax.select(descends, direction, cut_off(left * (right * matrix)))
