"""Scales that make sums of squares hold for all finite numbers; many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

MATRIX = (-2, -1)


def nearest_power_of_two(x: jax.Array) -> jax.Array:
    """The power of two nearest to x, kept within the normal numbers; 1 for 0."""
    info = jnp.finfo(x.dtype)
    x = jnp.clip(jnp.where(x == 0, 1, x), info.tiny, info.max / 4)
    return jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=0)


def split_scale(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits x into ``unit * scale``, the largest entry of unit being about one.

    The scale is a power of two, so nothing is rounded.
    """
    x = hidden(x)
    scale = nearest_power_of_two(jnp.max(jnp.abs(x)))
    return x / scale, scale


def split_scales(
    batches: Sequence[jax.Array],
) -> list[tuple[jax.Array, jax.Array]]:
    """:func:`split_scale` of each matrix of many batches ``[n, rows, columns]``."""
    batches = [hidden(x) for x in batches]
    largest = [(jnp.max(jnp.abs(x), MATRIX),) for x in batches]
    scales = together(_scale_and_inverse, largest)
    return [
        (x * column(inverse), scale)
        for x, (scale, inverse) in zip(batches, scales, strict=True)
    ]


def _scale_and_inverse(largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    scale = nearest_power_of_two(largest)
    return scale, 1 / scale


def hidden(x: jax.Array) -> jax.Array:
    """x, in such a way that XLA does not see whence it comes.

    If x is itself a quotient a / b, XLA would make a / (b * scale) of x / scale, and
    b * scale may underflow.
    """
    return jax.lax.optimization_barrier(x)


def column(x: jax.Array) -> jax.Array:
    """A number for each matrix, to be multiplied with them."""
    return x[..., None, None]


def together(
    function: Callable[..., Sequence[Any]], batches: Sequence[Sequence[jax.Array]]
) -> list[tuple[Any, ...]]:
    """A function of vectors, of all batches in one call.

    For each batch by itself there would be as many small kernels to compile and launch.

    Args:
      function: takes vectors of one length, and returns such.
      batches: the arguments of each batch, vectors of its length.

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
