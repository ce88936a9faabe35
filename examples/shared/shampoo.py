"""Shampoo with exact roots: the baseline of all studies.

``jorge(..., rule=Shampoo())`` tracks Shampoo's statistics and takes their roots by an
eigendecomposition. Tiles, momenta, grafting and devices are those of Jorge.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax import Rule

# Entries of a gradient beyond these enter the statistics as if they were just these:
# their squares stay well within float32's range.
LARGEST, SMALLEST = 2.0**50, 2.0**-50


class Root(NamedTuple):
    """What is kept for one side.

    Attributes:
      statistic: ``[m, m]``, in float32 or wider; zero before the first gradient.
      power: ``[m, m]``, its inverse fourth root.
    """

    statistic: jax.Array
    power: jax.Array


@dataclasses.dataclass(frozen=True)
class Shampoo(Rule):
    """Shampoo's rule: ``L <- beta2 L + (1 - beta2) G G^T``, and ``L^(-1/4)``.

    Statistics move when roots are refreshed, and not in between.

    Attributes:
      beta2: Weight of the old statistics at a refresh.
      start: A multiple of the identity, so many times as large as the first Gram
        matrix, is added to that matrix.
      damping: The same, at every refresh.
      ridge: Share of the largest eigenvalue that is added to all before the root.
      eps: Before the first gradient, roots are those of ``eps`` times the identity.
    """

    beta2: float = 0.95
    start: float = 0.3
    damping: float = 0.0
    ridge: float = 1e-6
    eps: float = 1e-6
    momentum: ClassVar[str] = "paper"

    def init(self, real, dtype):
        """Returns a statistic of zero, and the first root."""
        eye = jnp.diag(real)
        wide = jnp.promote_types(dtype, jnp.float32)
        return Root(jnp.zeros_like(eye, wide), (self.eps**-0.25 * eye).astype(dtype))

    def observe(self, left, right, gradient, size):
        """Returns the two Gram matrices."""
        del left, right
        gradient = jnp.clip(size, SMALLEST, LARGEST) * gradient
        return gradient @ gradient.T, gradient.T @ gradient

    def refresh(self, root, seen, real, rounding):
        """Moves the statistic towards the Gram matrix, and takes its root."""
        del rounding
        rows = jnp.maximum(jnp.sum(real), 1)
        first = jnp.trace(root.statistic) == 0
        more = self.damping + jnp.where(first, self.start, 0)
        seen = seen + more * jnp.trace(seen) / rows * jnp.diag(real)
        statistic = self.beta2 * root.statistic + (1 - self.beta2) * seen
        return Root(statistic, inverse_fourth_root(statistic, real, self.ridge))

    def precondition(self, left, right, matrix):
        """Returns ``L^(-1/4) G R^(-1/4)``."""
        return left.power @ matrix @ right.power

    def matrix(self, root):
        """Returns the root, for diagnostics."""
        return root.power


def inverse_fourth_root(
    statistic: jax.Array, real: jax.Array, ridge: float = 0.0
) -> jax.Array:
    """Returns ``(statistic + ridge * its largest eigenvalue)^(-1/4)`` by ``eigh``.

    Rows that are not real stay zero.
    """
    values, vectors = jnp.linalg.eigh(statistic)
    # eigh's own error: anything below it is noise, and may be negative.
    noise = jnp.finfo(values.dtype).eps * jnp.maximum(jnp.sum(real), 1)
    largest = jnp.maximum(values[-1], jnp.finfo(values.dtype).tiny / noise)
    values = jnp.maximum(values, noise * largest) + ridge * largest
    vectors = real[:, None] * vectors
    return (vectors * values[None] ** -0.25) @ vectors.T
