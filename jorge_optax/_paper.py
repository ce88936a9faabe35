r"""The paper's Algorithm 2, lines 1 to 11, and its appendix A.1, for one matrix.

Symbols, for the left side of a gradient G, m x n (the right side has G^T for G):

    root    L_hat, about the inverse fourth root of Shampoo's statistic L
    gram    G G^T
    x       X = L_hat^4 G G^T
    beta2   |X| / (|X| + 1), so that (1 - beta2) / beta2 = 1 / |X|

A root is kept as ``scale * unit`` with the largest entry of ``unit`` one, and a
gradient comes divided by its largest entry. Then no number overflows, whatever the
gradients are: the scale of a root is about ``|G|^(-1/2)``. X / |X|, which is all that
the series needs, is the same.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax._errors import POSITIVE, SHARE, check_number
from jorge_optax._rule import Root, Rounding, Rule

# A direction that no gradient excites grows against the others at each refresh. Once it
# is this much larger than those that are excited, it may not grow further: 2**10 in a
# root is 2**40 in the statistic, well beyond what float32 can resolve.
MAX_SPREAD = 2.0**10
# Scales of roots and directions are cut off at about the root of the largest float32.
MAX_SCALE = 2.0**63


class Seen(NamedTuple):
    """What one side sees of a gradient.

    Attributes:
      gram: ``[m, m]``, ``G G^T``, for the gradient divided by its largest entry.
      size: ``[]``, that entry.
    """

    gram: jax.Array
    size: jax.Array


@dataclasses.dataclass(frozen=True)
class BinomialSeries(Rule):
    r"""The paper's rule: a truncated binomial series about the old root.

    .. math:: \hat L \leftarrow \beta_2^{-1/4} \hat L
      \left(I - \tfrac14 \tfrac{X}{\|X\|} + \tfrac5{32} \tfrac{X^2}{\|X\|^2}\right),
      \qquad X = \hat L^4 G G^\top

    Each gradient is preconditioned, and the results are averaged.

    Attributes:
      eps: The statistics start as ``eps`` times the identity.
      damping: Adds ``damping * trace(gram) / m * I`` to each Gram matrix, m x m. The
        paper has none.

    Examples:
      >>> from jorge_optax import BinomialSeries, jorge
      >>> optimizer = jorge(0.1, rule=BinomialSeries())  # the default
    """

    eps: float = 1e-6
    damping: float = 0.0
    momentum: ClassVar[str] = "paper"
    risk: ClassVar[float] = 4.0

    def __post_init__(self) -> None:
        """Checks the options."""
        check_number("BinomialSeries.eps", self.eps, POSITIVE)
        check_number("BinomialSeries.damping", self.damping, SHARE)

    def init(self, real: jax.Array, dtype: np.dtype) -> Root:
        """Line 1: ``eps^(-1/4) I``, the root of the statistic ``eps I``."""
        scale = jnp.full([], min(self.eps**-0.25, MAX_SCALE), real.dtype)
        return Root(jnp.diag(real).astype(dtype), scale)

    def observe(
        self, left: Root, right: Root, gradient: jax.Array, size: jax.Array
    ) -> tuple[Seen, Seen]:
        """Returns the two Gram matrices of lines 5 and 7."""
        del left, right
        gram, other = gradient @ gradient.T, gradient.T @ gradient
        return Seen(gram, size), Seen(other, size)

    def refresh(
        self, root: Root, seen: Seen, real: jax.Array, rounding: Rounding
    ) -> Root:
        """Lines 5 and 6, or 7 and 8, between two guards (``docs/deviations.md``)."""
        eye, tiny = jnp.diag(real), jnp.finfo(real.dtype).tiny
        trace = jnp.maximum(jnp.trace(seen.gram), tiny)
        gram = seen.gram
        if self.damping:
            share = self.damping * trace / jnp.maximum(jnp.sum(real), 1)
            gram = gram + share * eye
        x, norm, unit_norm = excitation(root, Seen(gram, seen.size))
        # Line 6: I - X / (4 |X|) + 5 X^2 / (32 |X|^2), times the old root.
        unit = root.unit - root.unit @ (x / 4 - 5 / 32 * (x @ x))
        beta2 = norm / (norm + 1)  # A.1
        scale = root.scale / fourth_root(beta2)

        # The gradient excites only directions whose root is smaller by MAX_SPREAD than
        # the largest: a multiple of the identity keeps them off zero.
        lift = jnp.max(jnp.abs(unit)) / MAX_SPREAD
        unit = unit + jnp.where(unit_norm < MAX_SPREAD**-4 * trace, lift, 0) * eye
        # <G, root G> has sunk to the rounding errors of the root: it starts again, as
        # the root of |G|^2 I, for which |X| is about one.
        errors = 2 * float(jnp.finfo(rounding.dtype).eps)
        lost = jnp.sum(gram * root.unit) <= errors * trace
        unit = jnp.where(lost, eye, unit)
        restart = 1 / (fourth_root(trace) * jnp.sqrt(seen.size))

        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(unit)))
        largest = jnp.where(largest > 0, largest, 1)  # a tile that is all padding
        scale = jnp.where(lost, restart, scale * largest)
        return Root(unit / largest, jnp.clip(scale, 1 / MAX_SCALE, MAX_SCALE))

    def precondition(self, left: Root, right: Root, matrix: jax.Array) -> jax.Array:
        """Line 11: ``L_hat G R_hat``; a multiple of G where that does not descend."""
        most = jnp.finfo(matrix.dtype).max
        scale = jnp.clip(left.scale * right.scale, 1 / MAX_SCALE, MAX_SCALE)
        direction = scale * (left.unit @ matrix @ right.unit)
        # Roots make gradients like those before them about as large as one.
        scaled = jnp.clip(scale * matrix, -most, most)
        product = jnp.sum(scaled * direction)
        descends = (product > 0) & jnp.isfinite(product)
        return jnp.where(descends, direction, scaled)

    def report(self, root: Root, seen: Seen) -> dict[str, jax.Array]:
        """Returns ``beta2`` and ``growth``, its inverse fourth root."""
        _, norm, _ = excitation(root, seen)
        beta2 = norm / (norm + 1)
        return {"beta2": beta2, "growth": 1 / fourth_root(beta2)}


def fourth_root(x: jax.Array) -> jax.Array:
    """Returns the fourth root; a power, or a logarithm, takes long to compile."""
    return jnp.sqrt(jnp.sqrt(x))


def excitation(root: Root, seen: Seen) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Lines 5 and 7: returns ``X / |X|``, ``|X|``, and ``|unit^4 gram|``."""
    square, tiny = root.unit @ root.unit, jnp.finfo(root.unit.dtype).tiny
    x = square @ (square @ seen.gram)
    unit_norm = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(x)), tiny))
    # X = scale^4 size^2 x. Where beta2 is all but 0 or 1, |X| is cut off.
    scale = jnp.clip(root.scale**2 * seen.size, 1e-18, 1e6)
    return x / unit_norm, jnp.maximum(scale**2 * unit_norm, tiny), unit_norm
