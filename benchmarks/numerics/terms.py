"""Measures the accuracy that each further term or polynomial gains.

Question: how do the error of the scalar function and the cosine to Shampoo's direction
depend on the number of matrix products of a refresh?
Method: the paper's rule with 1 to 4 terms of the binomial series, and with the best
factors for [0, 1] in their place; compositions of 1 to 4 best polynomials of degree 1
to 4, each for several smallest eigenvalues. Error: the largest relative one, of
(1 + x)^(-1/4) on [0, 1], or of x^(-1/4) from the smallest eigenvalue to 1. Cosine:
between the direction and that of Shampoo with exact roots, in float32, on the recorded
streams after some refreshes; median and least of all. As in accuracy.py, "bare" is the
cosine to Shampoo with nothing added to its first gram. Products are of square matrices,
the gram included.
Answer: docs/composite.md, from benchmarks/results/numerics_terms.json.

    python -m benchmarks.numerics.terms
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import results
from benchmarks.numerics import accuracy
from benchmarks.numerics.design import best_series, design, largest_error
from benchmarks.numerics.figures import cosine, rounded
from benchmarks.numerics.inverse_root import (
    POLYNOMIALS,
    PolynomialRoot,
    count_products,
)
from benchmarks.numerics.rules import Packaged
from benchmarks.numerics.streams import Stream, recorded
from jorge_optax import BinomialSeries, Sides

REFRESHES = (5, 100)
TERMS = STAGES = DEGREES = results.sized((1, 2, 3, 4), (2,))
SMALLEST = results.sized((1e-1, 1e-2, 1e-3, 1e-4, 3e-5, 1e-5, 1e-6), (1e-2,))
MIXED = results.sized(((4, 6), (6, 6), (4, 4, 1), (4, 4, 2)), ())


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
            rule = Packaged(kind, BinomialSeries(factors))
            cosines: dict[str, list] = {}
            for group in groups:
                for row in accuracy.measure(
                    rule, group.streams, "float32", group.exact, group.bare
                ):
                    for refreshes in REFRESHES:
                        at = row["refreshes"].index(refreshes)
                        for key in ("cosine", "bare_cosine"):
                            found = cosines.setdefault(f"{key}_{refreshes}", [])
                            found.append(row[key][at])
            facts = {"kind": kind, "terms": count, "products": 4 + count}
            rows.append(_row(facts, series_error(factors), cosines))
            print(rows[-1], flush=True)
    return rows


def designs(stages: Any = STAGES, degrees: Any = DEGREES) -> list[tuple[int, ...]]:
    """Degrees of the polynomials of each composition."""
    return [(degree,) * count for degree in degrees for count in stages]


def composite_rows(
    groups: list, compositions: Any, aims: Any = SMALLEST
) -> list[dict[str, Any]]:
    """Compositions; those more exact than float64 can find are left out."""
    rows = []
    for degrees in compositions:
        for smallest in aims:
            try:
                polynomials, error = design(smallest, degrees)
            except ValueError:
                continue
            facts = {
                "kind": "composite",
                "stages": len(degrees),
                "degree": degrees[0] if len(set(degrees)) == 1 else None,
                "degrees": ", ".join(map(str, degrees)),
                "smallest": smallest,
                "products": 1 + count_products(polynomials, 4),
            }
            rows.append(_row(facts, error, _composite_cosines(groups, polynomials)))
            print(rows[-1], flush=True)
    return rows


def default_row(groups: list) -> dict[str, Any]:
    """The polynomials of the composite rule."""
    facts = {
        "kind": "composite",
        "stages": len(POLYNOMIALS[4]),
        "degree": "1, 4, 4",
        "smallest": 3e-5,
        "products": 1 + count_products(POLYNOMIALS[4], 4),
    }
    error = largest_error(3e-5, POLYNOMIALS[4])
    return _row(facts, error, _composite_cosines(groups, POLYNOMIALS[4]))


def _composite_cosines(groups: list, polynomials: tuple) -> dict[str, list]:
    inverse_root = PolynomialRoot(4, polynomials)
    root = jax.vmap(lambda side: inverse_root(side, "highest"))
    cosines: dict[str, list] = {}
    for group in groups:
        for refreshes in REFRESHES:
            # The roots depend on the statistics alone, not on the way to them.
            now = [side.astype(jnp.float32) for side in group.statistics[refreshes]]
            roots = Sides(*(np.asarray(root(side), np.float64) for side in now))
            for i, stream in enumerate(group.streams):
                g = stream.gradients[refreshes - 1].astype(np.float64)
                mine, exact, bare = (
                    pair.left[i] @ g @ pair.right[i]
                    for pair in (roots, group.exact[refreshes], group.bare[refreshes])
                )
                for key, reference in (("cosine", exact), ("bare_cosine", bare)):
                    found = cosines.setdefault(f"{key}_{refreshes}", [])
                    found.append(cosine(mine, reference))
    return cosines


def _row(facts: dict, error: float, cosines: dict[str, list]) -> dict[str, Any]:
    row = facts | {"error": error}
    for key, found in cosines.items():
        values = np.array([np.nan if c is None else c for c in found], float)
        row |= {key: np.median(values), f"least_{key}": np.min(values)}
    return rounded(row)


class Group(NamedTuple):
    """Streams of one shape; by the number of refreshes, Shampoo's statistics and roots.

    Attributes:
      streams: cut to the refreshes that are measured.
      statistics: of the baseline, float64.
      exact: their roots.
      bare: roots of the statistics to which nothing was added at the start.
    """

    streams: list[Stream]
    statistics: dict[int, Sides]
    exact: dict[int, Sides]
    bare: dict[int, Sides]


def prepare(streams: list[Stream]) -> list[Group]:
    """What all designs need, by shape."""
    groups = []
    for group in accuracy.by_shape(streams):
        short = [
            dataclasses.replace(s, gradients=s.gradients[: max(REFRESHES)])
            for s in group
        ]
        wanted = accuracy.checkpoints_of(short[0])
        tracked, bare = (
            accuracy.shampoo_statistics(short, wanted, start)
            for start in (accuracy.START, 0.0)
        )
        roots = (
            {t: accuracy.exact_roots(s, accuracy.RIDGE) for t, s in found.items()}
            for found in (tracked, bare)
        )
        groups.append(Group(short, tracked, *roots))
    return groups


def main() -> None:
    """Measures everything and writes the JSON."""
    jax.config.update("jax_enable_x64", True)
    groups = prepare(recorded())
    compositions = [*designs(), *MIXED]
    rows = [*series_rows(groups), default_row(groups)]
    rows += composite_rows(groups, compositions)
    count = sum(len(group.streams) for group in groups)
    facts = dict(streams=count, start=accuracy.START)
    results.write("numerics_terms", rows, seeds=[0], **facts)


if __name__ == "__main__":
    main()
