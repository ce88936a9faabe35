"""The paper's rule: roots refreshed by a truncated series about the old root."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jorge_optax import _algorithm, _guards, _thin_tiles
from jorge_optax._checks import check_coefficients, check_input, is_zero
from jorge_optax._numerics import (
    MATRIX_AXES,
    apply_jointly,
    column,
    split_scales,
    squared_norms,
)
from jorge_optax._rule import Input, Preconditioner, apply_roots, repeat
from jorge_optax._sides import BatchBySide, damp, join_sides, split_sides
from jorge_optax._types import Dtype, Matmul, Precision, Scalar, Sides, Stacks


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
        roots = {
            key: Sides(
                repeat(_algorithm.initial_root(rows, eps, dtype), n),
                repeat(_algorithm.initial_root(columns, eps, dtype), n),
            )
            for key, (n, rows, columns) in ((k, t.shape) for k, t in tiles.items())
        }
        return Preconditioner(roots, ())

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
        thin_tiles = self._choose_thin(source, damping)
        by_gram, thin = BatchBySide(), []
        for side in split_sides(source, kept.roots):
            root, gradient = side.of(kept.roots), side.gradient
            tall = gradient.shape[1] > gradient.shape[2]
            if tall and source[side.stack].shape[1:] in thin_tiles:
                thin.append((side, (root, gradient, side.scale, side.trace)))
                continue
            gram = matmul(gradient, gradient.mT)
            if not is_zero(damping):
                gram = damp(gram, side.trace, damping)
            by_gram.add(side, root, gram, side.scale, side.trace)
        batches = [RootBatch(*arrays, thin=False) for arrays in by_gram.batches()]
        alone = [RootBatch(*arrays, thin=True) for _, arrays in thin]
        refreshed = refresh_batches([*batches, *alone], matmul, self.factors)
        candidates = [*by_gram.split(refreshed[: len(batches)])]
        candidates += zip((s for s, _ in thin), refreshed[len(batches) :], strict=True)
        # Chosen for each stack and not for the batch, where the choice would read all
        # roots and so prevent XLA from writing each of them in place.
        roots = join_sides(
            (side, jnp.where(column(accepted), new, side.of(kept.roots)))
            for side, (new, accepted) in candidates
        )
        return Preconditioner(roots, kept.statistics)

    def precondition(
        self, kept: Preconditioner, matrices: Stacks, *, precision: Precision
    ) -> Stacks:
        """Multiplies each tile by its roots (line 11)."""
        return apply_roots(kept, matrices, precision=precision)

    def _choose_thin(self, source: Stacks, damping: Scalar) -> frozenset:
        """Chooses tiles to refresh without a Gram matrix; damping needs that matrix."""
        if not is_zero(damping):
            return frozenset()
        shapes = frozenset(tiles.shape for tiles in source.values())
        return _thin_tiles.choose_thin(shapes, len(self.factors))


class RootBatch(NamedTuple):
    """Roots of one length of side, and what they are refreshed from.

    Attributes:
      root: ``[n, m, m]``.
      data: Gram matrices ``[n, m, m]``, or gradients ``[n, m, columns]`` if thin, both
        of gradients divided by scale.
      scale: ``[n]``, powers of two.
      trace: ``[n]``, traces of the Gram matrices before damping.
      thin: Whether data are gradients.
    """

    root: jax.Array
    data: jax.Array
    scale: jax.Array
    trace: jax.Array
    thin: bool

    def excite(self, root: jax.Array, matmul: Matmul) -> tuple[jax.Array, jax.Array]:
        """Returns X of each root, and what :meth:`expand` needs."""
        if self.thin:
            excite = functools.partial(_thin_tiles.excitation, matmul=matmul)
            return jax.vmap(excite)(root, self.data)
        excite = functools.partial(_algorithm.excitation, matmul=matmul)
        x = jax.vmap(excite)(root, self.data)
        return x, x

    def expand(
        self,
        root: jax.Array,
        work: jax.Array,
        ratio: jax.Array,
        matmul: Matmul,
        series: tuple[float, ...],
    ) -> jax.Array:
        """Returns the new roots but for the growth."""
        options = {"matmul": matmul, "series": series}
        if self.thin:
            expand = functools.partial(_thin_tiles.expand, **options)
            return jax.vmap(expand)(root, work, self.data, ratio)
        expand = functools.partial(_algorithm.expand, **options)
        return jax.vmap(expand)(root, work, ratio)


def refresh_batches(
    batches: list[RootBatch], matmul: Matmul, series: tuple[float, ...]
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
    excited = [b.excite(unit, matmul) for b, unit in zip(batches, units, strict=True)]
    norms = [jnp.sqrt(squared_norms(x)) for x, _ in excited]
    traces = [batch.trace for batch in batches]
    steps = apply_jointly(
        _guards.ratio_and_growth,
        [*zip(norms, scales, (batch.scale for batch in batches), strict=True)],
    )
    new = [
        batch.expand(unit, work, ratio, matmul, series)
        for batch, unit, (_, work), (ratio, _) in zip(
            batches, units, excited, steps, strict=True
        )
    ]
    largest = [jnp.max(jnp.abs(unit), MATRIX_AXES) for unit in new]
    factors = [growth * s for (_, growth), s in zip(steps, scales, strict=True)]
    guards = apply_jointly(
        _guards.lift_and_acceptance,
        [*zip(largest, factors, norms, traces, strict=True)],
    )
    return [
        (_guards.lift(unit, by, factor).astype(batch.root.dtype), accepted)
        for batch, unit, (by, factor, accepted) in zip(
            batches, new, guards, strict=True
        )
    ]
