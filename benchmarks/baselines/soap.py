"""SOAP: Adam in the eigenbasis of Shampoo's statistics, by exact decompositions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.baselines.matrices import by_matrix


class SoapState(NamedTuple):
    """Of one m x n matrix."""

    left: jax.Array  # statistics
    right: jax.Array
    left_basis: jax.Array  # their eigenvectors
    right_basis: jax.Array
    first: jax.Array  # moments: of the gradient, and of the rotated one squared
    second: jax.Array


def scale_by_soap(
    b1: float = 0.9, b2: float = 0.95, interval: int = 10, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Returns SOAP's direction for matrices, as its authors define it.

    Its authors refresh the eigenvectors by one step of power iteration and QR; here
    ``eigh`` finds them exactly. The first step only starts the statistics.
    """

    def init(m: int, n: int) -> SoapState:
        return SoapState(
            *(jnp.zeros((m, m)), jnp.zeros((n, n)), jnp.eye(m), jnp.eye(n)),
            *(jnp.zeros((m, n)), jnp.zeros((m, n))),
        )

    def update(state: SoapState, g: jax.Array, count: jax.Array) -> Any:
        left_basis, right_basis = state.left_basis, state.right_basis
        starts = count == 1
        first = jnp.where(starts, 0, b1 * state.first + (1 - b1) * g)
        rotated = left_basis.T @ g @ right_basis
        second = b2 * state.second + (1 - b2) * rotated * rotated
        second = jnp.where(starts, 0, second)
        steps = jnp.maximum(count - 1, 1)
        mean = (left_basis.T @ first @ right_basis) / (1 - b1**steps)
        scale = jnp.sqrt(second / (1 - b2**steps)) + eps
        direction = left_basis @ (mean / scale) @ right_basis.T
        left = b2 * state.left + (1 - b2) * g @ g.T
        right = b2 * state.right + (1 - b2) * g.T @ g
        left_basis, right_basis = jax.lax.cond(
            starts | (count % interval == 0),
            lambda: (jnp.linalg.eigh(left)[1], jnp.linalg.eigh(right)[1]),
            lambda: (left_basis, right_basis),
        )
        return direction, SoapState(left, right, left_basis, right_basis, first, second)

    return by_matrix(init, update)
