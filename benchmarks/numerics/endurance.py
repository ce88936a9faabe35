"""Measures roots over 100,000 refreshes.

Question: rounding errors of float32 may accumulate, and directions without gradient may
grow. Do the roots stay symmetric, positive and finite?
Method: every stream in float32, in a scan. Synthetic streams are continued (scales
change after half the refreshes), the others are repeated. All in tiles of 32 x 16, four
in 64 x 64. Asymmetry (norm of root - its transpose, over that of the root), finiteness
and size are checked at each refresh, eigenvalues (by ``eigh`` in float64, of the
symmetric part) every 1,000. Of the two sides the worse one is shown.
Rules that the JSON has are not run again: delete it to measure all again.
Answer: docs/composite.md, from benchmarks/results/numerics_endurance.json, where

    asymmetry        the largest
    smallest         eigenvalue over the largest, the smallest seen
    non_finite       number of refreshes after which a root was not finite
    largest_entry    of a root at any time, by absolute value
    least_entry      the same, when it was smallest
    history          asymmetry (the largest until then) and smallest eigenvalue

    python -m benchmarks.numerics.endurance
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import results
from benchmarks.numerics.figures import rounded
from benchmarks.numerics.rules import (
    COMPOSITE,
    PAPER,
    SUBSTEPPED,
    WHITENING,
    Rule,
)
from benchmarks.numerics.streams import (
    SYNTHETIC,
    Stream,
    quadratics,
    recorded,
    synthetic_gradient,
)
from jorge_optax import Sides

REFRESHES, CHUNK = results.sized(100_000, 200), 100
HISTORY = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
TILE, LARGE_TILE = (32, 16), (64, 64)
LARGE = (
    "rank 1, constant",
    "heavy tails",
    "MLP, layer 1",
    "quadratic, condition 1e3",
)


class Worst(NamedTuple):
    """What was seen so far, for each tile."""

    asymmetry: jax.Array
    non_finite: jax.Array
    largest_entry: jax.Array
    least_entry: jax.Array


def cut(stream: Stream, tile: tuple[int, int]) -> np.ndarray:
    """The corner of all gradients, transposed if they are too flat."""
    gradients = stream.gradients
    if gradients.shape[1] < tile[0]:
        gradients = gradients.swapaxes(1, 2)
    gradients = gradients[:, : tile[0], : tile[1]]
    if gradients.shape[1:] != tile:
        raise ValueError(f"{stream.name} is too small for a tile of {tile}.")
    return gradients


def endure(
    rule: Rule,
    names: list[str],
    repeated: np.ndarray,
    tile: tuple[int, int],
    refreshes: int = REFRESHES,
) -> list[dict[str, Any]]:
    """One row for each stream.

    Args:
      rule: the rule.
      names: of the synthetic streams that come first, and of the repeated ones.
      repeated: ``[steps, n, R, C]``.
      tile: rows and columns.
      refreshes: a multiple of CHUNK.
    """
    made_up = [name for name in names if name in SYNTHETIC]
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

    @jax.jit
    def run(carry, gradients):
        return jax.lax.scan(functools.partial(_step, rule), carry, gradients)[0]

    n = len(names)
    infinite = jnp.full(n, jnp.inf)
    worst = Worst(jnp.zeros(n), jnp.zeros(n, jnp.int32), jnp.zeros(n), infinite)
    carry = rule.init((n, *tile)), worst
    history: dict[str, list] = {"refreshes": [], "asymmetry": [], "smallest": []}
    smallest = np.full(n, np.inf)
    for start in range(0, refreshes, CHUNK):
        carry = run(carry, gradients_from(start))
        done = start + CHUNK
        if done in HISTORY or done % 1000 == 0:
            now = smallest_eigenvalues(carry[0].roots)
            smallest = np.fmin(smallest, now)
            if done in HISTORY:
                history["refreshes"].append(done)
                history["asymmetry"].append(np.asarray(carry[1].asymmetry))
                history["smallest"].append(now)
    return [
        rounded(
            {
                "rule": rule.name,
                "stream": name,
                "tile": f"{tile[0]}x{tile[1]}",
                "refreshes": refreshes,
                "asymmetry": carry[1].asymmetry[i],
                "smallest": smallest[i],
                "non_finite": int(carry[1].non_finite[i]),
                "largest_entry": carry[1].largest_entry[i],
                "least_entry": carry[1].least_entry[i],
            }
        )
        | {"history": {key: _of_one(values, i) for key, values in history.items()}}
        for i, name in enumerate(names)
    ]


def _of_one(values: list, i: int) -> list:
    """The i-th of each; numbers of refreshes are common to all."""
    own = [value if isinstance(value, int) else value[i] for value in values]
    return list(rounded(dict(enumerate(own))).values())


def _step(rule: Rule, carry: Any, gradients: jax.Array) -> tuple[Any, None]:
    state, worst = carry
    state = rule.refresh(state, gradients)
    asymmetry = functools.reduce(jnp.maximum, map(_asymmetry, state.roots))
    entry = functools.reduce(jnp.maximum, map(_largest_entry, state.roots))
    return (
        state,
        Worst(
            jnp.fmax(worst.asymmetry, asymmetry),
            worst.non_finite + ~jnp.isfinite(entry),
            jnp.maximum(worst.largest_entry, entry),
            jnp.minimum(worst.least_entry, entry),
        ),
    ), None


def _largest_entry(roots: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(roots), axis=(1, 2))


def _asymmetry(roots: jax.Array) -> jax.Array:
    # Divided before squares are taken, which would overflow, but after the difference:
    # x / s - y / s, rounded as one, need not be zero for x = y.
    largest = _largest_entry(roots)[:, None, None]
    return _norm((roots - roots.mT) / largest) / _norm(roots / largest)


def _norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=(1, 2)))


def smallest_eigenvalues(roots: Sides) -> np.ndarray:
    """Of each tile, over the largest; NaN where a root is not finite."""
    found = []
    for side in roots:
        values = np.asarray(side, np.float64)
        finite = np.all(np.isfinite(values), axis=(1, 2))
        values = np.where(finite[:, None, None], values, np.eye(values.shape[-1]))
        values = np.linalg.eigvalsh((values + values.mT) / 2)
        found.append(np.where(finite, values[:, 0] / values[:, -1], np.nan))
    return np.fmin(*found)


def main() -> None:
    """Runs what the JSON lacks."""
    streams = {stream.name: stream for stream in [*recorded(), *quadratics()]}
    rows = results.rows("numerics_endurance")
    known = {(row["rule"], row["tile"]) for row in rows}
    large = [name for name in LARGE if name in SYNTHETIC or name in streams]
    for tile, names in ((TILE, [*SYNTHETIC, *streams]), (LARGE_TILE, large)):
        repeated = np.stack([cut(streams[n], tile) for n in names if n in streams], 1)
        for rule in (PAPER, SUBSTEPPED, COMPOSITE, WHITENING):
            if (rule.name, f"{tile[0]}x{tile[1]}") not in known:
                rows += endure(rule, list(names), repeated, tile)
                results.write("numerics_endurance", rows, seeds=[0])
                print(tile, rule.name, flush=True)


if __name__ == "__main__":
    main()
