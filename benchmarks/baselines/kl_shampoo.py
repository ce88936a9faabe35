"""KL-Shampoo: coupled statistics with exact decompositions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.baselines.matrices import by_matrix


class KLState(NamedTuple):
    """Of one m x n matrix: statistics, their decompositions, and the momentum."""

    left: jax.Array
    right: jax.Array
    left_basis: jax.Array
    right_basis: jax.Array
    left_values: jax.Array
    right_values: jax.Array
    momentum: jax.Array


def scale_by_kl_shampoo(
    b1: float = 0.9,
    b2: float = 0.98,
    interval: int = 10,
    smallest: float = 1e-6,
) -> optax.GradientTransformation:
    """Returns KL-Shampoo's direction for matrices, at its own length.

    Statistics and eigenvalues are averaged at each step. Its authors refresh the
    eigenvectors by one step of power iteration and QR; here ``eigh`` finds them.
    Momentum is heavy ball, and its bias is corrected. Its authors start the eigenvalues
    at 0.1, which suits gradients of that size; here they start at the root mean square
    of the first gradient, and are bounded below by ``smallest`` of the largest.
    """

    def inverse_root(values: jax.Array) -> jax.Array:
        return jax.lax.rsqrt(jnp.maximum(values, smallest * jnp.max(values) + 1e-30))

    def init(m: int, n: int) -> KLState:
        return KLState(
            *(jnp.zeros((m, m)), jnp.zeros((n, n)), jnp.eye(m), jnp.eye(n)),
            *(jnp.zeros(m), jnp.zeros(n), jnp.zeros((m, n))),
        )

    def update(state: KLState, g: jax.Array, count: jax.Array) -> Any:
        m, n = g.shape
        a, b = state.left_basis, state.right_basis
        start = jnp.where(count == 1, jnp.sqrt(jnp.mean(g * g)), 0)
        old_left, old_right = state.left_values + start, state.right_values + start
        rotated = a.T @ g @ b
        # Rows whitened by the right side, columns by the left one.
        by_right = rotated * inverse_root(old_right)
        by_left = rotated * inverse_root(old_left)[:, None]
        left_values = b2 * old_left + (1 - b2) * jnp.mean(by_right**2, 1)
        right_values = b2 * old_right + (1 - b2) * jnp.mean(by_left**2, 0)
        h, k = a @ by_right, by_left @ b.T
        left = b2 * (state.left + start * jnp.eye(m)) + (1 - b2) / n * h @ h.T
        right = b2 * (state.right + start * jnp.eye(n)) + (1 - b2) / m * k.T @ k
        momentum = b1 * state.momentum + (1 - b1) * g

        def decompose() -> Any:
            left_values, a = jnp.linalg.eigh(left)
            right_values, b = jnp.linalg.eigh(right)
            return a, b, left_values, right_values

        a, b, left_values, right_values = jax.lax.cond(
            (count == 1) | (count % interval == 0),
            decompose,
            lambda: (a, b, left_values, right_values),
        )
        mean = a.T @ momentum @ b / (1 - b1**count)
        scaled = inverse_root(left_values)[:, None] * mean * inverse_root(right_values)
        new = KLState(left, right, a, b, left_values, right_values, momentum)
        return a @ scaled @ b.T, new

    return by_matrix(init, update)
