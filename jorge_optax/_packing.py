"""Symmetric matrices in half the memory, packed and unpacked without a gather.

Of a symmetric m x m matrix S, the circulant diagonal d holds the entries
``S[i, (i + d) % m]``. Diagonals d and m - d hold the same numbers, so the first
``m // 2 + 1`` of them are all of S. In the array that has S twice side by side, row i
shifted by i has diagonal d in column d; the shift is a reshape to rows longer by one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._types import Shape


def packed_shape(side: int) -> Shape:
    """Returns the shape of one packed matrix."""
    return side, side // 2 + 1


def pack(matrices: jax.Array) -> jax.Array:
    """Packs symmetric matrices ``[n, m, m]`` into ``[n, m, m // 2 + 1]``."""
    n, m, _ = matrices.shape
    twice = jnp.concatenate([matrices, matrices], 2).reshape(n, -1)
    shifted = jnp.pad(twice, ((0, 0), (0, m))).reshape(n, m, 2 * m + 1)
    return shifted[:, :, : m // 2 + 1]


def unpack(packed: jax.Array) -> jax.Array:
    """Returns the symmetric matrices ``[n, m, m]`` that were packed."""
    n, m, kept = packed.shape
    # Diagonals that hold each number twice would be counted twice below.
    weights = np.ones((1, 1, kept), packed.dtype)
    weights[..., 0] = 0.5
    if m % 2 == 0:
        weights[..., -1] = 0.5
    wide = jnp.pad(packed * weights, ((0, 0), (0, 0), (0, 2 * m + 1 - kept)))
    rows = wide.reshape(n, -1)[:, : 2 * m * m].reshape(n, m, 2 * m)
    upper = rows[:, :, :m] + rows[:, :, m:]
    return upper + upper.mT
