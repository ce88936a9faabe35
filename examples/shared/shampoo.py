"""Shampoo with exact roots: the baseline of all studies.

It is :func:`jorge_optax.jorge`, including tiles, momenta and grafting, with another
rule: it tracks Shampoo's statistics and takes their roots by an eigendecomposition.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax import Preconditioner, Rule, Sides, jorge

# Entries of a gradient beyond these enter the statistics as if they were just these:
# their squares stay well within float32's range.
LARGEST, SMALLEST = 2.0**50, 2.0**-50


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


@dataclasses.dataclass(frozen=True)
class ShampooRule:
    """Shampoo's rule: ``L <- beta2 L + (1 - beta2) G G^T``, and ``L^(-1/4)``.

    A tile whose gradient is zero or not finite keeps its statistics and roots.

    Attributes:
      beta2: Weight of the old statistics at a refresh.
      start: A multiple of the identity, so many times as large as the first Gram
        matrix, is added to that matrix.
      inverse_root: Function of a symmetric matrix and a precision that returns its
        inverse fourth root.
    """

    beta2: float = 0.95
    start: float = 0.3
    inverse_root: Callable[[jax.Array, Any], jax.Array] = ExactRoot()

    @property
    def preconditions(self) -> Literal["gradient"]:
        """Says that the roots are applied to the gradient."""
        return "gradient"

    def init(self, tiles: Any, *, eps: Any, dtype: Any) -> Preconditioner:
        """Starts roots as ``eps^(-1/4) I``, and statistics as zero."""
        scale = jnp.asarray(eps, dtype) ** jnp.asarray(-0.25, dtype)
        wide = jnp.promote_types(dtype, jnp.float32)
        roots, statistics = {}, {}
        for key, (n, *sides) in ((key, tile.shape) for key, tile in tiles.items()):
            eyes = (scale * jnp.eye(m, dtype=dtype) for m in sides)
            roots[key] = Sides(*(jnp.tile(eye, (n, 1, 1)) for eye in eyes))
            statistics[key] = Sides(*(jnp.zeros((n, m, m), wide) for m in sides))
        return Preconditioner(roots, statistics)

    def refresh(
        self, kept: Preconditioner, gradients: Any, momenta: Any, *, damping, precision
    ) -> Preconditioner:
        """Moves the statistics towards new Gram matrices, and takes their roots."""
        del momenta
        statistics, usable = {}, {}
        for key, tiles in gradients.items():
            old = kept.statistics[key]
            unit, scale = _split(tiles.astype(old.left.dtype))
            trace = jnp.sum(jnp.square(unit), (1, 2), keepdims=True)
            good = jnp.isfinite(trace) & (trace > 0)
            usable[key] = Sides(good, good)
            moved = []
            for statistic, g in zip(old, (unit, unit.mT), strict=True):
                m = g.shape[1]
                gram = jnp.matmul(g, g.mT, precision=precision)
                # A statistic is zero until the first gradient, and never after.
                first = jnp.trace(statistic, axis1=1, axis2=2)[:, None, None] == 0
                more = damping + jnp.where(first, self.start, 0)
                gram = gram + (more * trace / m) * jnp.eye(m, dtype=gram.dtype)[None]
                new = self.beta2 * statistic + (1 - self.beta2) * gram * scale * scale
                moved.append(jnp.where(good, new, statistic))
            statistics[key] = Sides(*moved)
        roots = jax.tree.map(
            lambda good, new, old: jnp.where(good, new.astype(old.dtype), old),
            usable,
            self._take_roots(statistics, precision),
            kept.roots,
        )
        return Preconditioner(roots, statistics)

    def precondition(
        self, kept: Preconditioner, matrices: Any, *, precision: Any
    ) -> dict[str, jax.Array]:
        """Multiplies each tile by its roots."""
        directions = {}
        for key, tiles in matrices.items():
            left, right = (root.astype(tiles.dtype) for root in kept.roots[key])
            half = jnp.matmul(left, tiles, precision=precision)
            directions[key] = jnp.matmul(half, right, precision=precision)
        return directions

    def _take_roots(self, statistics: Any, precision: Any) -> Any:
        """Takes the roots of all sides; those of equal length form one batch."""
        sides, tree = jax.tree.flatten(statistics)
        roots: list[Any] = [None] * len(sides)
        take = jax.vmap(lambda statistic: self.inverse_root(statistic, precision))
        for length in dict.fromkeys(side.shape[-1] for side in sides):
            own = [i for i, side in enumerate(sides) if side.shape[-1] == length]
            cuts = np.cumsum([len(sides[i]) for i in own])[:-1]
            batch = take(jnp.concatenate([sides[i] for i in own]))
            for i, root in zip(own, jnp.split(batch, cuts), strict=True):
                roots[i] = root
        return tree.unflatten(roots)


def _split(tiles: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Divides each tile by the power of two nearest to its largest entry.

    Returns the tiles, and these powers clipped to SMALLEST and LARGEST.
    """
    info = jnp.finfo(tiles.dtype)
    largest = jnp.max(jnp.abs(tiles), (1, 2), keepdims=True)
    largest = jnp.clip(jnp.where(largest == 0, 1, largest), info.tiny, info.max / 4)
    scale = jax.lax.reduce_precision(largest, info.nexp, mantissa_bits=0)
    return tiles * (1 / scale), jnp.clip(scale, SMALLEST, LARGEST)


def shampoo(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = None,
    *,
    rule: Rule | None = None,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """Returns Shampoo with exact roots and SGD grafting; options are `jorge`'s."""
    return jorge(
        learning_rate,
        momentum,
        weight_decay,
        weight_decay_mask,
        rule=rule or ShampooRule(),
        **options,
    )
