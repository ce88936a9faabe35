"""Power-of-two scaling that avoids overflow and underflow in norms and products.

Dividing by a power of two is exact, so scaling changes no bit of a result that neither
overflows nor underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

MATRIX_AXES = (-2, -1)


def nearest_power_of_two(x: jax.Array) -> jax.Array:
    """Returns the power of two nearest to x, within the normal numbers; 1 for 0."""
    info = jnp.finfo(x.dtype)
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
    """Applies :func:`split_scale` to each matrix of batches ``[n, rows, columns]``."""
    batches = [hide_origin(x) for x in batches]
    largest = [(jnp.max(jnp.abs(x), MATRIX_AXES),) for x in batches]
    scales = apply_jointly(_scale_and_inverse, largest)
    return [
        (x * column(inverse), scale)
        for x, (scale, inverse) in zip(batches, scales, strict=True)
    ]


def _scale_and_inverse(largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    scale = nearest_power_of_two(largest)
    return scale, 1 / scale


def hide_origin(x: jax.Array) -> jax.Array:
    """Hides how x was computed from XLA's algebraic simplifier.

    If x is a quotient a / b, XLA would rewrite x / scale as a / (b * scale), where
    b * scale may underflow.
    """
    return jax.lax.optimization_barrier(x)


def column(x: jax.Array) -> jax.Array:
    """Reshapes one number for each matrix so that it broadcasts over the matrix."""
    return x[..., None, None]


def squared_norms(batch: jax.Array) -> jax.Array:
    """Returns the squared Frobenius norm of each matrix."""
    return jnp.sum(jnp.square(batch), MATRIX_AXES)


def identity_like(matrices: jax.Array) -> jax.Array:
    """Returns the identity, with as many leading axes of length 1 as matrices has."""
    eye = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
    return eye.reshape((1,) * (matrices.ndim - 2) + eye.shape)


def fourth_root(x: jax.Array) -> jax.Array:
    """Returns ``x^(1/4)``."""
    return jnp.sqrt(jnp.sqrt(x))


def apply_jointly(
    function: Callable[..., Sequence[jax.Array]],
    batches: Sequence[Sequence[jax.Array]],
) -> list[tuple[jax.Array, ...]]:
    """Applies an elementwise function to the vectors of all batches in one call.

    One call for each batch would compile and launch as many small kernels.

    Args:
      function: Takes vectors of one length and returns vectors of that length.
      batches: The arguments of each batch, vectors of its length.

    Returns:
      For each batch, its part of what the function returned.
    """
    lengths = [len(arguments[0]) for arguments in batches]
    columns = zip(*batches, strict=True)
    results = function(*(jnp.concatenate(parts) for parts in columns))
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [
        tuple(result[start : start + length] for result in results)
        for start, length in zip(starts, lengths, strict=True)
    ]
