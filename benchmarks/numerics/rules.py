"""The rules compared: the package's own, run as it runs them, and prototypes.

A rule works on a stack of n tiles of one shape, both sides at once, as the package
does: ``init(tiles)`` and ``refresh(state, gradients)`` with gradients ``[n, R, C]``;
``state.roots`` are what they are named. ``beta2`` says which weight the next refresh
gives the old statistic, ``start`` as which multiple of the identity that statistic
begins; so the statistic that a rule tracks, if only implicitly, can be tracked beside
it, in float64. All can be jitted, vmapped and scanned, in float32 or float64.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cost.counts import matmul_flops
from benchmarks.numerics.design import design
from benchmarks.numerics.inverse_root import composite_rule
from examples.shared.shampoo import ExactRoot, ShampooRule
from jorge_optax import BinomialSeries, Preconditioner, Sides, Whitening
from jorge_optax import Rule as PackageRule
from jorge_optax._numerics import split_scale

EPS = 1e-6
BEST_QUADRATIC = (-0.2304, 0.0727)  # of (1 + x)^(-1/4) on [0, 1]


class RuleState(NamedTuple):
    """What a rule carries from refresh to refresh.

    Attributes:
      roots: left ``[n, R, R]`` and right ``[n, C, C]``.
      extra: statistics of the package's rules; sub-steps so far of the prototypes.
    """

    roots: Sides
    extra: Any


def sides(function, *pairs, gradients: jax.Array) -> Sides:
    """What a function of one side makes of each side of each tile of a stack."""
    lefts, rights = ([getattr(pair, side) for pair in pairs] for side in Sides._fields)
    mapped = jax.vmap(function)
    return Sides(mapped(*lefts, gradients), mapped(*rights, gradients.mT))


def _identities(tiles: tuple[int, int, int], scale: float, dtype: Any) -> Sides:
    n, rows, columns = tiles
    return Sides(
        *(jnp.tile(scale * jnp.eye(m, dtype=dtype), (n, 1, 1)) for m in (rows, columns))
    )


@dataclasses.dataclass(frozen=True)
class Packaged:
    """A rule of the package, or one with its interface.

    Attributes:
      name: how results call it.
      rule: the rule.
      root_dtype: dtype of the roots; None is that of the gradients.
      precision: what the rule is told of its products. On a CPU it changes nothing
        else: see arithmetic.py, which rounds their inputs.
    """

    name: str
    rule: PackageRule
    root_dtype: str | None = None
    precision: jax.lax.Precision = jax.lax.Precision.HIGHEST

    @property
    def start(self) -> float:
        """The statistic begins as this multiple of the identity."""
        return EPS if isinstance(self.rule, BinomialSeries) else 0.0

    def init(self, tiles: tuple[int, int, int], dtype: Any = jnp.float32) -> RuleState:
        """The state of n tiles of some rows and columns before the first refresh."""
        structs = {"": jax.ShapeDtypeStruct(tiles, dtype)}
        root_dtype = jnp.dtype(self.root_dtype or dtype)
        kept = self.rule.init(structs, eps=EPS, dtype=root_dtype)
        return RuleState(kept.roots[""], kept.statistics)

    def direction(self, state: RuleState, gradients: jax.Array) -> jax.Array:
        """What the package makes of the gradients, behind its guard."""
        kept = Preconditioner({"": state.roots}, state.extra)
        made = self.rule.precondition(kept, {"": gradients}, precision=self.precision)
        return made[""]

    def refresh(self, state: RuleState, gradients: jax.Array) -> RuleState:
        """One refresh, by the package's own code."""
        new = self.rule.refresh(
            Preconditioner({"": state.roots}, state.extra),
            {"": gradients},
            None,
            damping=0.0,
            precision=self.precision,
        )
        return RuleState(new.roots[""], new.statistics)

    def beta2(self, state: RuleState, gradients: jax.Array) -> Sides:
        """Weight of the old statistic at the next refresh, for each side and tile."""

        def of_side(root, gradient):
            if not isinstance(self.rule, BinomialSeries):
                beta2 = jnp.asarray(self.rule.beta2, root.dtype)
            else:
                squared = root @ root
                norm = jnp.linalg.norm(squared @ (squared @ gradient) @ gradient.T)
                beta2 = norm / (norm + 1)
            return jnp.where(jnp.any(gradient != 0), beta2, 1)

        return sides(of_side, state.roots, gradients=gradients)

    def flops(self, tile: tuple[int, int], state: RuleState, refreshes: int) -> Any:
        """Operations of matrix products so far, for each tile; NaN for ``eigh``."""
        root = getattr(self.rule, "inverse_root", None)
        if isinstance(root, ExactRoot):
            return np.full(len(state.roots.left), np.nan)
        structs = jax.eval_shape(lambda: self.init((1, *tile)))
        gradient = jax.ShapeDtypeStruct((1, *tile), jnp.float32)
        once = matmul_flops(self.refresh, structs, gradient).plain
        return np.full(len(state.roots.left), refreshes * float(once))


@dataclasses.dataclass(frozen=True)
class Congruence:
    """Prototypes: ``root <- beta2^(-1/4) F root F``, F about ``(I + a S)^(-1/8)``.

    Here ``S = root^2 G G^T root^2`` and ``a = (1 - beta2) / beta2``.

    Attributes:
      name: how results call it.
      floor: beta2 is at least this; None is beta2 at its bound, ``a = 1 / |S|``, and
        the best quadratic on [0, 1]. With a floor, ``a S`` may reach 4, its norm is
        bounded by ``sqrt(|S^2|)``, and F is right at 0, in value and slope, and at
        the bound.
      substeps: a gram whose weight would take ``a S`` beyond 4 is added in up to so
        many parts, each of which reads S again.
    """

    name: str
    floor: float | None = None
    substeps: int = 1
    start = EPS

    def init(self, tiles: tuple[int, int, int], dtype: Any = jnp.float32) -> RuleState:
        """The state before the first refresh."""
        none = jnp.zeros(tiles[0], jnp.int32)
        return RuleState(_identities(tiles, EPS**-0.25, dtype), Sides(none, none))

    def refresh(self, state: RuleState, gradients: jax.Array) -> RuleState:
        """One refresh."""
        new = sides(self._refresh_side, state.roots, gradients=gradients)
        roots = Sides(new.left[0], new.right[0])
        used = Sides(new.left[2], new.right[2])
        return RuleState(roots, jax.tree.map(jnp.add, state.extra, used))

    def beta2(self, state: RuleState, gradients: jax.Array) -> Sides:
        """Weight of the old statistic at the next refresh, for each side and tile."""
        new = sides(self._refresh_side, state.roots, gradients=gradients)
        return Sides(1 / (1 + new.left[1]), 1 / (1 + new.right[1]))

    def flops(self, tile: tuple[int, int], state: RuleState, refreshes: int) -> Any:
        """Operations of matrix products so far; only sub-steps that did something."""
        del refreshes
        rows, columns = tile
        left = 4 * rows**3 + 2 * rows**2 * columns
        right = 4 * columns**3 + 2 * columns**2 * rows
        steps = [np.asarray(used, float) for used in state.extra]
        return 2 * (steps[0] * left + steps[1] * right)

    def _refresh_side(self, root, gradient) -> tuple[jax.Array, jax.Array, jax.Array]:
        """New root, weight of the gram against the old statistic, sub-steps used."""
        mm = functools.partial(jnp.matmul, precision="highest")
        seen = jnp.any(gradient != 0)
        start = root
        total, used = jnp.zeros([], root.dtype), jnp.zeros([], jnp.int32)
        for _ in range(self.substeps):
            b = mm(mm(root, root), gradient)
            s, scale = split_scale(mm(b, b.T))
            square = mm(s, s)
            eye = jnp.eye(len(s), dtype=s.dtype)
            if self.floor is None:
                step = 1 / jnp.linalg.norm(s)
                factor = eye - 0.1164 * step * s + 0.0340 * step * step * square
            else:
                wanted = (1 - self.floor) / self.floor - total
                bound = jnp.sqrt(jnp.linalg.norm(square))
                step = jnp.minimum(wanted * scale, 4 / bound)
                c = jnp.clip(step * bound, 0.25, 4)
                q = ((1 + c) ** -0.125 - 1 + c / 8) / jnp.square(c)
                factor = eye - step / 8 * s + q * step * step * square
            used = used + (seen & (step > 0))
            root = mm(mm(factor, root), factor)
            total = total + step / scale
        root = (1 + total) ** 0.25 * (root + root.T) / 2
        return jnp.where(seen, root, start), jnp.where(seen, total, 0), used


@dataclasses.dataclass(frozen=True)
class Unrefreshed:
    """No roots: the direction is the gradient itself, as SGD's."""

    name: str = "gradient itself"
    start = 1.0

    def init(self, tiles: tuple[int, int, int], dtype: Any = jnp.float32) -> RuleState:
        """Identities."""
        return RuleState(_identities(tiles, 1.0, dtype), ())

    def refresh(self, state: RuleState, gradients: jax.Array) -> RuleState:
        """Nothing."""
        del gradients
        return state

    def beta2(self, state: RuleState, gradients: jax.Array) -> Sides:
        """One: the statistic stays as it is."""
        return sides(lambda root, _: root[0, 0], state.roots, gradients=gradients)

    def flops(self, tile: tuple[int, int], state: RuleState, refreshes: int) -> Any:
        """None."""
        del tile, refreshes
        return np.zeros(len(state.roots.left))


Rule = Packaged | Congruence | Unrefreshed

PAPER = Packaged("paper", BinomialSeries())
COMPOSITE = Packaged("composite", composite_rule())
# For endurance alone: accuracy compares with Shampoo, whose roots this rule's are not.
WHITENING = Packaged("whitening", Whitening())
SUBSTEPPED = Congruence("congruence, sub-steps", floor=0.95, substeps=4)


def rules() -> list[Rule]:
    """All rules."""
    return [
        Unrefreshed(),
        PAPER,
        Packaged("paper, best quadratic", BinomialSeries(BEST_QUADRATIC)),
        Congruence("congruence"),
        Congruence("congruence, floor", floor=0.95),
        SUBSTEPPED,
        staged("composite, 2 polynomials", 3e-5, (4, 4)),
        COMPOSITE,
        staged("composite, from 1e-6", 1e-6, (4, 4, 4)),
        Packaged("exact", ShampooRule()),
    ]


def staged(name: str, smallest: float, degrees: tuple[int, ...]) -> Packaged:
    """The composite rule with the best polynomials of these degrees."""
    return Packaged(name, composite_rule(design(smallest, degrees)[0]))
