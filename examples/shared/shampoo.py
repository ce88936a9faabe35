"""Shampoo with exact roots: the baseline of all studies.

It is :func:`jorge_optax.jorge`, including tiles, momenta and grafting, with one
function replaced: the roots of the statistics come from an eigendecomposition, not from
polynomials. Two runs then differ by their roots alone.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jorge_optax import TrackedStatistics, jorge


def exact_root(statistic: jax.Array, ridge: float = 0.0) -> jax.Array:
    """Returns ``(statistic + ridge * its largest eigenvalue)^(-1/4)`` by ``eigh``."""
    values, vectors = jnp.linalg.eigh(statistic)
    # eigh's own error: anything below it is noise, and may be negative.
    noise = jnp.finfo(values.dtype).eps * len(values)
    largest = jnp.maximum(values[-1], jnp.finfo(values.dtype).tiny / noise)
    values = jnp.maximum(values, noise * largest) + ridge * largest
    return (vectors * values[None] ** -0.25) @ vectors.T


@dataclasses.dataclass(frozen=True)
class ExactRoot:
    """The exact inverse fourth root, by an eigendecomposition.

    Attributes:
      ridge: Share of the largest eigenvalue that is added to all.
    """

    ridge: float = 1e-6

    def __call__(self, statistic: jax.Array, precision: Any) -> jax.Array:
        """Returns the root of one matrix."""
        del precision
        return exact_root(statistic, self.ridge)


def exact_rule(ridge: float = ExactRoot.ridge, **options: Any) -> TrackedStatistics:
    """Returns Shampoo's rule: its statistics, and their exact roots."""
    return TrackedStatistics(inverse_root=ExactRoot(ridge), **options)


def shampoo(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = None,
    *,
    rule: TrackedStatistics | None = None,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """Returns Shampoo with exact roots and SGD grafting; options are `jorge`'s."""
    return jorge(
        learning_rate,
        momentum,
        weight_decay,
        weight_decay_mask,
        rule=rule or exact_rule(),
        **options,
    )
