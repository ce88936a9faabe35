"""Power-of-two scaling that avoids overflow and underflow in norms and products.

Dividing by a power of two is exact, so scaling changes no bit of a result that neither
overflows nor underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np


def nearest_power_of_two(x: jax.Array) -> jax.Array:
    """Returns the power of two nearest to x, within the normal numbers; 1 for 0.

    A constant to differentiation: what is divided by it is multiplied by it later.
    """
    info = jnp.finfo(x.dtype)
    x = jax.lax.stop_gradient(x)
    x = jnp.clip(jnp.where(x == 0, 1, x), info.tiny, info.max / 4)
    return jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=0)


def split_scale(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits x into ``unit * scale``, where the largest entry of unit is about one."""
    x = hide_origin(x)
    scale = nearest_power_of_two(jnp.max(jnp.abs(x)))
    return x / scale, scale


def split_scales(
    batches: Sequence[jax.Array],
) -> list[tuple[jax.Array, jax.Array]]:
    """Applies :func:`split_scale` to each matrix of batches ``[n, rows, columns]``.

    The scales of all batches are computed at once: one call for each batch would
    compile and launch as many small kernels. Batches that are quotients need
    :func:`hide_origin`; others do without, so that a GPU need not write them out.
    """
    largest = jnp.concatenate([jnp.max(jnp.abs(x), (1, 2)) for x in batches])
    scale = nearest_power_of_two(largest)
    cuts = np.cumsum([len(x) for x in batches])[:-1]
    parts = zip(jnp.split(scale, cuts), jnp.split(1 / scale, cuts), strict=True)
    return [
        (x * inverse[:, None, None], scale)
        for x, (scale, inverse) in zip(batches, parts, strict=True)
    ]


def at_once(
    function: Callable[..., Sequence[jax.Array]], *numbers: Sequence[jax.Array]
) -> list[tuple[jax.Array, ...]]:
    """Applies a function to numbers ``[n]`` of several batches, of all at once.

    One call for each batch would compile and launch as many small kernels.

    Args:
      function: Takes and returns several numbers for each matrix of all batches.
      *numbers: For each argument of the function, those of each batch.

    Returns:
      For each batch what the function returns for it.
    """
    cuts = np.cumsum([len(x) for x in numbers[0]])[:-1]
    found = function(*(jnp.concatenate(own) for own in numbers))
    return list(zip(*(jnp.split(x, cuts) for x in found), strict=True))


def hide_origin(x: jax.Array) -> jax.Array:
    """Hides how x was computed from XLA's algebraic simplifier.

    If x is a quotient a / b, XLA would rewrite x / scale as a / (b * scale), where
    b * scale may underflow.
    """
    return jax.lax.optimization_barrier(x)


def traces(x: jax.Array) -> jax.Array:
    """Returns the traces of matrices ``[n, m, m]``, and reads only their diagonals."""
    n, m, _ = x.shape
    return jnp.sum(x.reshape(n, m * m)[:, :: m + 1], 1)


def trace_of_product(one: jax.Array, other: jax.Array, product: jax.Array) -> jax.Array:
    """Returns the traces of ``one^T other``, ``[n]``, which is also given as a product.

    A GPU reads the diagonals of the product. A CPU sums the products of entries, for
    which XLA has a function and need not compile one.
    """
    return jax.lax.platform_dependent(
        *(one, other, product),
        cpu=lambda one, other, _: jnp.sum(one * other, (1, 2)),
        default=lambda one, other, product: traces(product),
    )


def safe_sqrt(x: jax.Array) -> jax.Array:
    """Returns the square root, with a derivative of 0 and not infinity at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), x)


def cut_off(x: jax.Array) -> jax.Array:
    """Cuts real entries off at the largest finite number; NaN stays NaN."""
    if jnp.iscomplexobj(x):
        return x
    largest = jnp.finfo(x.dtype).max
    return jax.lax.clamp(-largest, x, largest)
