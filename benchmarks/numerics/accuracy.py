"""Measures how close each rule comes to exact roots, and at what cost.

Question: on recorded and synthetic gradients, how far are a rule's roots from exact
ones, and its direction from that of Shampoo with exact roots? Are they symmetric,
positive, finite? And with TF32 or bfloat16 matrix products?
Method: each rule sees each stream, a refresh at each gradient, in float32. In parallel,
float64 tracks the statistic of the rule itself (with the rule's own beta2 at
each refresh) and that of Shampoo (examples/shared/shampoo.py: beta2 = 0.95, and
0.3 of the mean of its diagonal added to the first gram). Their roots by ``eigh`` are
exact; where a statistic starts at zero, 1e-6 of the largest eigenvalue is added first.
Low precision: the inputs of every matrix product of a refresh are rounded, the sums are
float32's.
Answer: docs/composite.md, from benchmarks/results/numerics_accuracy.json. A row is a
rule on a stream in an arithmetic, with lists along ``refreshes`` of

    error            of the root against the exact root of the same statistic, relative,
                     Frobenius norm
    shampoo_error    against Shampoo's root, both divided by their norms
    cosine           of left @ G @ right with Shampoo's direction, G the last gradient
    bare_cosine      the same, nothing added to Shampoo's first gram
    known_cosine     with the direction of the expected statistics, where known
    condition        number of the root
    asymmetry        norm of root - its transpose, over that of the root
    smallest         eigenvalue of the symmetric part, over the largest
    gflop            of matrix products so far, both sides
    over_neighbour   norm of the direction over that of a tile with the same gradients
                     but for one, which was tiny here

Of the two sides the worse one is shown. Null: not finite, or the gradient is zero.

    python -m benchmarks.numerics.accuracy
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import results
from benchmarks.numerics.arithmetic import ARITHMETICS, with_products_in
from benchmarks.numerics.figures import cosine, figures, rounded
from benchmarks.numerics.rules import Rule, Unrefreshed, rules, sides
from benchmarks.numerics.streams import Stream, all_streams, quadratics
from examples.shared.shampoo import ExactRoot, ShampooRule, exact_root
from jorge_optax import Sides

CHECKPOINTS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 300)
AFTER_EVENT = (0, 1, 2, 3, 5, 10, 20, 50, 100)
LOW_PRECISION_CHECKPOINTS = (5, 100, 300)
BETA2, START = ShampooRule.beta2, ShampooRule.start
RIDGE = ExactRoot.ridge
NEIGHBOURS = {"one tiny gradient": "noise"}


def checkpoints_of(stream: Stream, arithmetic: str = "float32") -> list[int]:
    """Returns the numbers of refreshes after which a stream is measured."""
    if arithmetic != "float32":
        wanted = set(LOW_PRECISION_CHECKPOINTS)
    else:
        wanted = set(CHECKPOINTS)
        if stream.event is not None:
            wanted |= {stream.event + after for after in AFTER_EVENT}
    return sorted(c for c in wanted if c <= len(stream.gradients))


def run(rule: Rule, streams: list[Stream], arithmetic: str = "float32"):
    """Yields the number of refreshes, state and statistics, at each checkpoint.

    The streams have one shape and length. The statistics are the rule's own.
    """
    gradients = np.stack([stream.gradients for stream in streams], axis=1)
    tiles = gradients.shape[1:]
    refresh = with_products_in(arithmetic, rule.refresh)

    @jax.jit
    def step(state, own, gradients):
        exact = jax.tree.map(lambda x: x.astype(jnp.float64), state.roots)
        beta2 = rule.beta2(state._replace(roots=exact), gradients.astype(jnp.float64))
        own = move(own, beta2, gradients)
        return refresh(state, gradients), own

    state = rule.init(tiles)
    own = statistics_at_start(tiles, rule.start)
    wanted = {c for stream in streams for c in checkpoints_of(stream, arithmetic)}
    for t in range(max(wanted)):
        state, own = step(state, own, gradients[t])
        if t + 1 in wanted:
            yield t + 1, state, own


def statistics_at_start(tiles: tuple[int, int, int], start: float) -> Sides:
    """Returns multiples of the identity, float64."""
    n, rows, columns = tiles
    return Sides(
        *(
            jnp.tile(start * jnp.eye(m, dtype="float64"), (n, 1, 1))
            for m in (rows, columns)
        )
    )


def move(
    statistics: Sides, beta2: Sides, gradients: jax.Array, start: float = START
) -> Sides:
    """Statistics after one more gradient; in float64."""

    def of_side(statistic, beta2, gradient):
        gram = gradient @ gradient.T
        share = jnp.where(jnp.trace(statistic) == 0, start, 0) / len(gram)
        gram = gram + share * jnp.trace(gram) * jnp.eye(len(gram))
        return jnp.where(beta2 < 1, beta2 * statistic + (1 - beta2) * gram, statistic)

    return sides(of_side, statistics, beta2, gradients=gradients.astype(jnp.float64))


def shampoo_statistics(
    streams: list[Stream], wanted: Any, start: float = START
) -> dict[int, Sides]:
    """Shampoo's statistics of each stream after some numbers of refreshes, float64."""
    gradients = np.stack([stream.gradients for stream in streams], axis=1)
    statistics = statistics_at_start(gradients.shape[1:], 0.0)
    step = jax.jit(functools.partial(move, start=start))
    found = {}
    for t, g in enumerate(gradients):
        # As in the package, a zero gradient does not count.
        beta2 = np.where(np.any(g != 0, axis=(1, 2)), BETA2, 1.0)
        statistics = step(statistics, Sides(beta2, beta2), g)
        if t + 1 in wanted:
            found[t + 1] = statistics
    return found


def exact_roots(statistics: Sides, ridge: float) -> Sides:
    """Roots by ``eigh``, as NumPy arrays."""
    mapped = jax.jit(jax.vmap(lambda s: exact_root(s, ridge)))
    return Sides(*(np.asarray(mapped(side)) for side in statistics))


def measure(
    rule: Rule,
    streams: list[Stream],
    arithmetic: str,
    exact: dict[int, Sides],
    bare: dict[int, Sides] | None = None,
) -> list:
    """One row for each stream; the streams have one shape and length.

    Args:
      rule: the rule.
      streams: the streams.
      arithmetic: of the rule's matrix products.
      exact: Shampoo's exact roots of all streams by the number of refreshes.
      bare: the same with nothing added to the first gram; None: not compared with.
    """
    rows = [
        {
            "rule": rule.name,
            "stream": stream.name,
            "kind": stream.kind,
            "arithmetic": arithmetic,
            "refreshes": checkpoints_of(stream, arithmetic),
        }
        for stream in streams
    ]
    for refreshes, state, own in run(rule, streams, arithmetic):
        same = exact_roots(own, 0.0 if rule.start else RIDGE)
        flops = rule.flops(streams[0].gradients.shape[1:], state, refreshes)
        roots = Sides(*(np.asarray(side, np.float64) for side in state.roots))
        for i, (stream, row) in enumerate(zip(streams, rows, strict=True)):
            if refreshes not in row["refreshes"]:
                continue
            one, reference, shampoo = (
                Sides(pair.left[i], pair.right[i])
                for pair in (roots, same, exact[refreshes])
            )
            gradient = stream.gradients[refreshes - 1].astype(np.float64)
            found = figures(one, reference, shampoo, gradient, stream.known)
            if bare:
                plain = bare[refreshes].left[i] @ gradient @ bare[refreshes].right[i]
                found["bare_cosine"] = cosine(one.left @ gradient @ one.right, plain)
            for key, value in rounded(found | {"gflop": flops[i] / 1e9}).items():
                row.setdefault(key, []).append(value)
    return rows


def compare_with_neighbours(rows: list[dict]) -> None:
    """Replaces the norms of directions by their ratios to the neighbour's, if any."""
    keys = "rule", "stream", "arithmetic"
    norms = {
        tuple(row[key] for key in keys): dict(
            zip(row["refreshes"], row.pop("direction_norm"), strict=True)
        )
        for row in rows
    }
    for row in rows:
        rule, stream, arithmetic = own = tuple(row[key] for key in keys)
        theirs = norms.get((rule, NEIGHBOURS.get(stream), arithmetic))
        if theirs:
            ratios = {
                t: norm / theirs[t] if norm and theirs[t] else None
                for t, norm in norms[own].items()
            }
            row["over_neighbour"] = list(rounded(ratios).values())


def by_shape(streams: list[Stream]) -> list[list[Stream]]:
    """Streams of equal shape and length together."""
    groups: dict[tuple, list[Stream]] = {}
    for stream in streams:
        groups.setdefault(stream.gradients.shape, []).append(stream)
    return list(groups.values())


def study(streams: list[Stream], chosen: list[Rule], arithmetics: Any) -> list[dict]:
    """Returns all rows."""
    rows = []
    for group in by_shape(streams):
        wanted = {c for stream in group for c in checkpoints_of(stream)}
        exact, bare = (
            {
                t: exact_roots(statistics, RIDGE)
                for t, statistics in shampoo_statistics(group, wanted, start).items()
            }
            for start in (START, 0.0)
        )
        for rule in chosen:
            for arithmetic in arithmetics:
                if isinstance(rule, Unrefreshed) and arithmetic != "float32":
                    continue
                rows += measure(rule, group, arithmetic, exact, bare)
                print(group[0].gradients.shape, rule.name, arithmetic, flush=True)
    compare_with_neighbours(rows)
    return rows


def main() -> None:
    """Measures everything and writes the JSON."""
    jax.config.update("jax_enable_x64", True)
    streams = results.sized(all_streams, quadratics)()
    rows = study(streams, rules()[: results.sized(None, 3)], ARITHMETICS)
    facts = dict(beta2=BETA2, start=START, ridge=RIDGE)
    results.write("numerics_accuracy", rows, seeds=[0], **facts)


if __name__ == "__main__":
    main()
