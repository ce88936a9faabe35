"""Refreshes roots 100,000 times, and records the worst of what they were.

Every stream runs in float32, in a scan. Synthetic streams are continued (scales change
after half the refreshes), the others are repeated. Asymmetry (norm of root - its
transpose, over that of the root), finiteness, size, and the cosine of each gradient
with its direction are checked at each refresh, eigenvalues (by ``eigh`` in float64, of
the symmetric part) every 1,000. Of two sides the worse one is recorded. A row has

    asymmetry        the largest
    smallest         eigenvalue over the largest, the smallest seen
    non_finite       number of refreshes after which a root was not finite
    largest_entry    of a root at any time, by absolute value
    least_entry      the same, when it was smallest
    cosine           of a gradient with its direction, the least
    ascents          number of refreshes after which the roots alone, without the guard
                     of the step, would have made the cosine zero or less
    history          asymmetry (the largest until then) and smallest eigenvalue
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.robustness.arithmetic import with_products_in
from benchmarks.robustness.streams import (
    HOSTILE,
    SYNTHETIC,
    quadratics,
    recorded,
    synthetic_gradient,
)
from jorge_optax import MatrixView, Numerics, Rule, Tiling, scale_by_jorge

REFRESHES, CHUNK = results.sized(100_000, 200), 100
HISTORY = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
# What "highest", "high" and "default" allow at the least.
PRODUCTS = {"highest": "float32", "high": "tf32", "default": "bf16"}
MADE_UP = (*SYNTHETIC, *HOSTILE)
LARGE = (
    "rank 1, constant",
    "heavy tails",
    "MLP, layer 1",
    "quadratic, condition 1e3",
)


class Case(NamedTuple):
    """A rule of the package with options, on a batch of n matrices of one tile each.

    Attributes:
      name: how results call it.
      rule: the rule.
      root_dtype: dtype of the roots.
      precision: what the optimizer is told of its products. On a CPU it changes nothing
        else: see arithmetic.py, which rounds their inputs.
    """

    name: str
    rule: Rule
    root_dtype: str = "float32"
    precision: str = "highest"

    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        """Refreshes the roots at each step, and gives the directions that they make."""
        return scale_by_jorge(
            rule=self.rule,
            update_interval=1,
            tiling=Tiling(view=_view_tiles),
            numerics=Numerics(
                self.root_dtype, apply=self.precision, refresh=self.precision
            ),
        )


def _view_tiles(path: str, shape: tuple[int, ...]) -> MatrixView:
    del path, shape
    return MatrixView((1,), (2,))


def roots_of(state: Any) -> tuple[Any, Any]:
    """Returns the left and the right roots of all tiles, ``unit`` and ``scale``."""
    (left,), (right,) = (side.values() for side in optax.tree.get(state, "roots"))
    return left, right


class Worst(NamedTuple):
    """What was seen so far, for each tile."""

    asymmetry: jax.Array
    non_finite: jax.Array
    largest_entry: jax.Array
    least_entry: jax.Array
    cosine: jax.Array
    ascents: jax.Array


def cut(name: str, gradients: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """The corner of all gradients, transposed if they are too flat."""
    if gradients.shape[1] < tile[0]:
        gradients = gradients.swapaxes(1, 2)
    gradients = gradients[:, : tile[0], : tile[1]]
    if gradients.shape[1:] != tile:
        raise ValueError(f"{name} is too small for a tile of {tile}.")
    return gradients


def endure(
    rules: Sequence[Case],
    names: list[str],
    repeated: np.ndarray,
    tile: tuple[int, int],
    refreshes: int = REFRESHES,
) -> list[dict[str, Any]]:
    """One row for each rule and stream.

    Args:
      rules: the rules; all get the same gradients.
      names: of the synthetic streams that come first, and of the repeated ones.
      repeated: ``[steps, n, R, C]``.
      tile: rows and columns.
      refreshes: a multiple of CHUNK.
    """
    made_up = [name for name in names if name in MADE_UP]
    half = {"scale up by 1e3", "scale down by 1e3"}

    @jax.jit
    def gradients_from(start):
        t = start + jnp.arange(CHUNK)
        parts = [
            jax.vmap(
                lambda t, name=name: synthetic_gradient(
                    name, tile, t, refreshes // 2 if name in half else None
                )
            )(t)
            for name in made_up
        ]
        cyclic = jnp.asarray(repeated)[t % len(repeated)]
        return jnp.concatenate([jnp.stack(parts, 1), cyclic] if parts else [cyclic], 1)

    endurances = [Endurance(rule, len(names), tile) for rule in rules]
    for start in range(0, refreshes, CHUNK) if rules else ():
        if start % 10_000 == 0:
            print(tile, start, flush=True)
        gradients = gradients_from(start)
        for endurance in endurances:
            endurance.go_on(gradients, start + CHUNK)
    return [row for endurance in endurances for row in endurance.rows(names)]


class Endurance:
    """The state of one rule on n tiles, and what was seen of it."""

    def __init__(self, rule: Case, n: int, tile: tuple[int, int]) -> None:
        """Starts before the first refresh."""
        self.rule, self.tile, self.done = rule, tile, 0
        self.run = jax.jit(
            lambda *args: jax.lax.scan(functools.partial(_step, rule), *args)[0]
        )
        self.state = rule.optimizer().init(jnp.zeros((n, *tile)))
        infinite, none = jnp.full(n, jnp.inf), jnp.zeros(n, jnp.int32)
        zero = jnp.zeros(n)
        self.worst = Worst(zero, none, zero, infinite, infinite, none)
        self.smallest = np.full(n, np.inf)
        self.history: dict[str, list] = {
            key: [] for key in ("refreshes", "asymmetry", "smallest")
        }

    def go_on(self, gradients: jax.Array, done: int) -> None:
        """Refreshes by gradients ``[steps, n, R, C]``, which makes ``done`` in all."""
        self.state, self.worst = self.run((self.state, self.worst), gradients)
        self.done = done
        if done in HISTORY or done % 1000 == 0:
            now = smallest_eigenvalues(roots_of(self.state))
            self.smallest = np.fmin(self.smallest, now)
            if done in HISTORY:
                self.history["refreshes"].append(done)
                self.history["asymmetry"].append(np.asarray(self.worst.asymmetry))
                self.history["smallest"].append(now)

    def rows(self, names: list[str]) -> list[dict[str, Any]]:
        """One row for each stream."""
        worst = self.worst._asdict()
        return [
            rounded(
                {
                    "rule": self.rule.name,
                    "stream": name,
                    "tile": f"{self.tile[0]}x{self.tile[1]}",
                    "refreshes": self.done,
                    "smallest": self.smallest[i],
                }
                | {key: value[i].item() for key, value in worst.items()}
            )
            | {"history": {key: _of_one(h, i) for key, h in self.history.items()}}
            for i, name in enumerate(names)
        ]


def _of_one(values: list, i: int) -> list:
    """The i-th of each; numbers of refreshes are common to all."""
    own = [value if isinstance(value, int) else value[i] for value in values]
    return list(rounded(dict(enumerate(own))).values())


def _step(rule: Case, carry: Any, gradients: jax.Array) -> tuple[Any, None]:
    state, worst = carry
    products = PRODUCTS[rule.precision]
    made, state = with_products_in(products, rule.optimizer().update)(gradients, state)
    units = [root.unit.astype(gradients.dtype) for root in roots_of(state)]
    scales = [root.scale for root in roots_of(state)]
    asymmetry = functools.reduce(jnp.maximum, map(_asymmetry, units))
    entries = (
        scale * _largest_entry(unit) for scale, unit in zip(scales, units, strict=True)
    )
    entry = functools.reduce(jnp.maximum, entries)
    plain = with_products_in(products, _plain_direction)(*units, gradients)
    return (
        state,
        Worst(
            jnp.fmax(worst.asymmetry, asymmetry),
            worst.non_finite + ~jnp.isfinite(entry),
            jnp.maximum(worst.largest_entry, entry),
            jnp.minimum(worst.least_entry, entry),
            jnp.minimum(worst.cosine, cosine(made, gradients)),
            worst.ascents + ~(cosine(plain, gradients) > 0),
        ),
    ), None


def _plain_direction(
    left: jax.Array, right: jax.Array, gradients: jax.Array
) -> jax.Array:
    multiply = functools.partial(jnp.matmul, precision="highest")
    return multiply(multiply(left, gradients), right)


def cosine(directions: jax.Array, gradients: jax.Array) -> jax.Array:
    """Of each tile; one for a zero gradient, which has no direction."""
    product = jnp.sum(directions * gradients, axis=(1, 2))
    found = product / (_norm(directions) * _norm(gradients))
    return jnp.where(_norm(gradients) > 0, found, 1)


def _largest_entry(roots: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(roots), axis=(1, 2))


def _asymmetry(roots: jax.Array) -> jax.Array:
    # Divided before squares are taken, which would overflow, but after the difference:
    # x / s - y / s, rounded as one, need not be zero for x = y.
    largest = _largest_entry(roots)[:, None, None]
    return _norm((roots - roots.mT) / largest) / _norm(roots / largest)


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=(1, 2)))


def smallest_eigenvalues(roots: tuple[Any, Any]) -> np.ndarray:
    """Of each tile, over the largest; NaN where a root is not finite."""
    found = []
    for side in roots:
        values = np.asarray(side.unit, np.float64)
        finite = np.all(np.isfinite(values), axis=(1, 2))
        values = np.where(finite[:, None, None], values, np.eye(values.shape[-1]))
        values = np.linalg.eigvalsh((values + values.mT) / 2)
        found.append(np.where(finite, values[:, 0] / values[:, -1], np.nan))
    return np.fmin(*found)


def completed(
    rows: list[dict[str, Any]],
    tile: tuple[int, int],
    rules: Sequence[Case],
    only: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The rows, and those that they lack: of a tile, by rules, on some streams."""
    streams = {**recorded(), **quadratics()}
    names = [n for n in [*MADE_UP, *streams] if only is None or n in only]
    known = {row["rule"] for row in rows if row["tile"] == f"{tile[0]}x{tile[1]}"}
    lacking = [rule for rule in rules if rule.name not in known]
    repeated = np.stack([cut(n, streams[n], tile) for n in names if n in streams], 1)
    return rows + endure(lacking, names, repeated, tile)


def rounded(row: dict[Any, Any]) -> dict[Any, Any]:
    """Numbers with 4 digits; None for those that are not finite."""

    def short(value):
        if isinstance(value, bool | int | str | None):
            return value
        return float(f"{value:.4g}") if np.isfinite(value) else None

    return {key: short(value) for key, value in row.items()}
