"""The paper's rule: roots refreshed by a truncated series about the old root."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jorge_optax import _algorithm, _guards, _thin_tiles
from jorge_optax._checks import check_coefficients, check_input
from jorge_optax._distributed import all_shapes
from jorge_optax._numerics import safe_sqrt, split_scales
from jorge_optax._rule import Preconditioner
from jorge_optax._sides import (
    Groups,
    apply_roots,
    damp,
    join_sides,
    map_batches,
    split_sides,
    start_roots,
)
from jorge_optax._types import Dtype, Input, Matmul, Precision, Scalar, Stacks


@dataclasses.dataclass(frozen=True)
class BinomialSeries:
    r"""The paper's rule: a truncated binomial series about the old root.

    .. math:: \hat L \leftarrow \beta_2^{-1/4} \hat L
      \left(I + f_1 \tfrac{X}{\|X\|} + f_2 \tfrac{X^2}{\|X\|^2} + \dots\right),
      \qquad X = \hat L^4 G G^\top

    Attributes:
      factors: :math:`f_1, f_2, \dots`, at least one number. The default is the paper's,
        the first two terms of the binomial series of :math:`(1 + x)^{-1/4}`.
      preconditions: ``"gradient"`` is the paper's order: each gradient is
        preconditioned, and the results are averaged. ``"momentum"`` keeps the momentum
        of the gradients alone: the roots are refreshed from it and applied to it, which
        saves one momentum. ``"nesterov"`` applies the roots to Nesterov's momentum and
        refreshes them from the gradient.

    Examples:
      >>> from jorge_optax import BinomialSeries, jorge
      >>> optimizer = jorge(0.1, rule=BinomialSeries())  # the default
      >>> three = jorge(0.1, rule=BinomialSeries((-1 / 4, 5 / 32, -15 / 128)))
    """

    factors: tuple[float, ...] = _algorithm.BINOMIAL_SERIES
    preconditions: Input = "gradient"

    def __post_init__(self) -> None:
        """Checks the options."""
        name = "BinomialSeries.factors"
        factors = check_coefficients(name, self.factors, at_least=1)
        object.__setattr__(self, "factors", factors)
        check_input("BinomialSeries.preconditions", self.preconditions)

    def init(
        self, tiles: dict[str, jax.ShapeDtypeStruct], *, eps: Scalar, dtype: Dtype
    ) -> Preconditioner:
        """Starts every root as ``eps^(-1/4) I`` (line 1)."""
        return Preconditioner(start_roots(tiles, eps, dtype), ())

    def refresh(
        self,
        kept: Preconditioner,
        gradients: Stacks,
        momenta: Stacks | None,
        *,
        damping: Scalar,
        precision: Precision,
    ) -> Preconditioner:
        """Refreshes all roots (lines 5 to 8), behind guards."""
        source = gradients
        if self.preconditions == "momentum" and momenta is not None:
            source = momenta
        matmul = functools.partial(jnp.matmul, precision=precision)
        damps = isinstance(damping, jax.Array) or damping != 0
        # Damping needs the Gram matrix, which thin tiles do without.
        thin_tiles = _thin_tiles.choose_thin(
            all_shapes(source), len(self.factors), damps
        )
        sides = split_sides(source, kept.roots)
        items, keys = [], []
        for i, side in enumerate(sides):
            length, width = side.gradient.shape[1:]
            thin = length > width and source[side.stack].shape[1:] in thin_tiles
            data = side.gradient if thin else matmul(side.gradient, side.gradient.mT)
            if damps:
                data = damp(data, side.trace, damping)
            items.append((side.root, data, side.scale, side.trace))
            keys.append((length, i if thin else None))  # a thin side is alone

        def refresh(groups: Groups) -> list[tuple[jax.Array, jax.Array]]:
            batches = [
                RootBatch(*arrays, thin=alone is not None)
                for (_, alone), arrays in groups.items()
            ]
            return refresh_batches(batches, matmul, self.factors)

        refreshed = map_batches(refresh, items, keys)
        # Chosen for each stack and not for the batch, where the choice would read all
        # roots and so prevent XLA from writing each of them in place.
        roots = [
            jnp.where(accepted[:, None, None], new, side.root)
            for side, (new, accepted) in zip(sides, refreshed, strict=True)
        ]
        return Preconditioner(join_sides(sides, roots), kept.statistics)

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots (line 11), behind a guard."""
        directions = apply_roots(kept.roots, matrices, precision)
        return self.guard(kept, matrices, directions)

    def guard(
        self, kept: Preconditioner, matrices: Stacks, directions: Stacks
    ) -> Stacks:
        """Replaces directions that do not descend."""
        return {
            key: _guards.keep_descent(kept.roots[key], matrices[key], direction)
            for key, direction in directions.items()
        }


class RootBatch(NamedTuple):
    """Roots of one length of side, and what they are refreshed from.

    Attributes:
      root: ``[n, m, m]``.
      data: Gram matrices ``[n, m, m]``, or gradients ``[n, m, columns]`` of thin tiles,
        both of gradients divided by scale.
      scale: ``[n]``, powers of two.
      trace: ``[n]``, traces of the Gram matrices before damping.
      thin: Whether data are gradients.
    """

    root: jax.Array
    data: jax.Array
    scale: jax.Array
    trace: jax.Array
    thin: bool


def refresh_batches(
    batches: Sequence[RootBatch], matmul: Matmul, series: tuple[float, ...]
) -> list[tuple[jax.Array, jax.Array]]:
    """Runs the algorithm on each batch, and the guards on all batches at once.

    Args:
      batches: The batches.
      matmul: The matrix product.
      series: Factors of the series.

    Returns:
      For each batch, its new roots, and ``[n]`` whether to accept them.
    """
    wide = [batch.root.astype(batch.data.dtype) for batch in batches]
    units, scales = zip(*split_scales(wide), strict=True)

    # Lines 5 and 7.
    x, work, product = [], [], []
    for batch, unit in zip(batches, units, strict=True):
        excitation = (_thin_tiles if batch.thin else _algorithm).excitation
        excited = jax.vmap(functools.partial(excitation, matmul=matmul))
        work.append(excited(unit, batch.data))
        x.append(work[-1][0] if batch.thin else work[-1])
        # <G, root G>.
        by = batch.data * (work[-1][3] if batch.thin else unit)
        product.append(jnp.sum(by, (1, 2)))
    # What takes one number a matrix takes those of all batches at once: one call for
    # each batch would compile and launch as many small kernels.
    cuts = np.cumsum([len(unit) for unit in units])[:-1]
    norm = safe_sqrt(jnp.concatenate([jnp.sum(jnp.square(one), (1, 2)) for one in x]))
    root_scale = jnp.concatenate(scales)
    scale = jnp.concatenate([batch.scale for batch in batches])
    # Appendix A.1.
    ratio, growth = _guards.ratio_and_growth(norm, root_scale, scale)
    # Lines 6 and 8, but for the growth.
    new = []
    for batch, unit, done, own in zip(
        batches, units, work, jnp.split(ratio, cuts), strict=True
    ):
        expand = (_thin_tiles if batch.thin else _algorithm).expand
        expand = functools.partial(expand, matmul=matmul, series=series)
        new.append(jax.vmap(expand)(unit, done, own))
    largest = jnp.concatenate([jnp.max(jnp.abs(unit), (1, 2)) for unit in new])
    trace = jnp.concatenate([batch.trace for batch in batches])
    factor = growth * root_scale
    lost = _guards.is_lost(jnp.concatenate(product), trace, batches[0].root.dtype)
    largest = jnp.where(lost, 1, largest)
    factor = jnp.where(lost, _guards.restart_scale(trace, scale), factor)
    lift, accepted = _guards.lift_and_acceptance(largest, factor, norm, trace)
    numbers = zip(
        *(jnp.split(each, cuts) for each in (lift, factor, accepted, lost)), strict=True
    )
    refreshed = []
    for batch, unit, (lift, factor, accepted, lost) in zip(
        batches, new, numbers, strict=True
    ):
        lift, factor, lost = (x[:, None, None] for x in (lift, factor, lost))
        eye = jnp.eye(unit.shape[-1], dtype=unit.dtype)[None]
        root = jnp.where(lost, eye, unit + lift * eye) * factor
        refreshed.append((root.astype(batch.root.dtype), accepted))
    return refreshed
