"""What does each further term, or polynomial, buy?

Question: how do the error of the scalar function and the nearness to Shampoo's
direction depend on the number of matrix products a refresh takes?
Method: the paper's rule with 1 to 4 terms of the binomial series, and with the best
factors for [0, 1] in their place; compositions of 1 to 4 best polynomials of degree 1
to 4, each for several smallest eigenvalues. Error: the largest relative one, of
(1 + x)^(-1/4) on [0, 1], or of x^(-1/4) from the smallest eigenvalue to 1. Cosine:
between the direction and that of Shampoo with exact roots, in float32, on the recorded
streams after some refreshes; median and smallest of all. Products are of square
matrices, the gram included.
Answer: docs/composite.md, from benchmarks/results/numerics_terms.json.

    python -m benchmarks.numerics.terms
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.numerics import accuracy
from benchmarks.numerics.design import best_series, design
from benchmarks.numerics.rules import Packaged
from benchmarks.numerics.streams import Stream, recorded
from jorge_optax import Roots, Series
from jorge_optax._composite import composite_products, composite_root

REFRESHES = (5, 100)
TERMS = STAGES = DEGREES = (1, 2, 3, 4)
SMALLEST = (1e-1, 1e-2, 1e-3, 1e-4, 3e-5, 1e-5, 1e-6)


def binomial(terms: int) -> tuple[float, ...]:
    """Factors of x, x^2, ... in the series of ``(1 + x)^(-1/4)``."""
    powers = np.arange(terms)
    return tuple(map(float, np.cumprod((-0.25 - powers) / (powers + 1))))


def series_error(factors: tuple[float, ...]) -> float:
    """The largest relative error of a series on [0, 1]."""
    x = np.linspace(0, 1, 100_001)
    value = np.polynomial.polynomial.polyval(x, (1.0, *factors))
    return float(np.max(np.abs(1 - (1 + x) ** 0.25 * value)))


def series_rows(groups: list, terms: Any = TERMS) -> list[dict[str, Any]]:
    """The paper's rule, with binomial and best factors."""
    rows = []
    for count in terms:
        for factors, kind in (
            (binomial(count), "series, binomial"),
            (tuple(best_series(count)[0]), "series, best"),
        ):
            rule = Packaged(kind, Series(factors))
            cosines: dict[int, list] = {refreshes: [] for refreshes in REFRESHES}
            for streams, _, exact in groups:
                for row in accuracy.measure(rule, streams, "float32", exact):
                    by_refreshes = dict(
                        zip(row["refreshes"], row["cosine"], strict=True)
                    )
                    for refreshes, found in cosines.items():
                        found.append(by_refreshes[refreshes])
            facts = {"kind": kind, "terms": count, "products": 4 + count}
            rows.append(_row(facts, series_error(factors), cosines))
            print(rows[-1], flush=True)
    return rows


def composite_rows(
    groups: list, stages: Any = STAGES, degrees: Any = DEGREES, aims: Any = SMALLEST
) -> list[dict[str, Any]]:
    """Compositions; those more exact than float32 itself are left out."""
    rows = []
    for degree in degrees:
        for smallest in aims:
            for count in stages:
                if count > 1 and rows[-1]["error"] < 1e-6:
                    continue
                polynomials, error = design(smallest, (degree,) * count)
                facts = {
                    "kind": "composite",
                    "stages": count,
                    "degree": degree,
                    "smallest": smallest,
                    "products": 1 + composite_products(polynomials),
                }
                cosines = _composite_cosines(groups, polynomials)
                rows.append(_row(facts, error, cosines))
                print(rows[-1], flush=True)
    return rows


def _composite_cosines(groups: list, polynomials: tuple) -> dict[int, list]:
    root = jax.vmap(functools.partial(composite_root, polynomials=polynomials))
    cosines: dict[int, list] = {refreshes: [] for refreshes in REFRESHES}
    for streams, statistics, exact in groups:
        for refreshes, found in cosines.items():
            # The roots depend on the statistics alone, not on the way to them.
            now = [side.astype(jnp.float32) for side in statistics[refreshes]]
            roots = Roots(*(np.asarray(root(side), np.float64) for side in now))
            for i, stream in enumerate(streams):
                g = stream.gradients[refreshes - 1].astype(np.float64)
                mine, reference = (
                    pair.left[i] @ g @ pair.right[i]
                    for pair in (roots, exact[refreshes])
                )
                found.append(accuracy.cosine(mine, reference))
    return cosines


def _row(facts: dict, error: float, cosines: dict[int, list]) -> dict[str, Any]:
    row = facts | {"error": error}
    for refreshes, found in cosines.items():
        values = np.array([np.nan if c is None else c for c in found], float)
        row[f"cosine_{refreshes}"] = np.median(values)
        row[f"least_cosine_{refreshes}"] = np.min(values)
    return accuracy.rounded(row)


def prepare(streams: list[Stream]) -> list[tuple]:
    """Streams of one shape, their statistics and their exact roots, by shape."""
    groups = []
    for group in accuracy.by_shape(streams):
        short = [
            dataclasses.replace(s, gradients=s.gradients[: max(REFRESHES)])
            for s in group
        ]
        wanted = accuracy.checkpoints_of(short[0])
        statistics = accuracy.shampoo_statistics(short, wanted)
        exact = {
            t: accuracy.exact_roots(s, accuracy.RIDGE) for t, s in statistics.items()
        }
        groups.append((short, statistics, exact))
    return groups


def main() -> None:
    """Measures all and writes the JSON."""
    jax.config.update("jax_enable_x64", True)
    groups = prepare(recorded())
    rows = [*series_rows(groups), *composite_rows(groups)]
    results.write("numerics_terms", rows, streams=sum(len(g[0]) for g in groups))


if __name__ == "__main__":
    main()
