"""Measures the cosine of directions to their gradients over 100,000 refreshes.

Question: does any rule, with any dtype of roots and any precision of products that one
may choose, ever make an ascent direction of a gradient?
Method: that of endurance.py, on recorded and synthetic streams and on four that were
found by attacks, with a refresh at every step. All streams in tiles of 24 x 16, five in
64 x 64. Products below float32 are emulated: their inputs are rounded, sums are not;
these take longer, and run in tiles of 16 x 8.
Rules that the JSON has are not run again: delete it to measure all again.
Answer: docs/robustness.md, from benchmarks/results/descent.json, with the columns that
endurance.py defines.

    python -m benchmarks.robustness.descent
"""

from benchmarks.harness import results
from benchmarks.robustness.endurance import LARGE, PRODUCTS, Case, completed
from jorge_optax import BinomialSeries, Whitening

SMALL_TILE, TILE, LARGE_TILE = (16, 8), (24, 16), (64, 64)
DTYPES = ("float32", "bfloat16")
FIVE = (*LARGE, "rank 3 and noise")
PAPER = Case("paper", BinomialSeries())
WHITENING = Case("whitening", Whitening())


def offered(rule: Case) -> list[Case]:
    """The rule with each dtype of roots and precision of products that one may choose.

    Its name goes on with what is not float32.
    """
    chosen = []
    for dtype in DTYPES:
        for precision, products in PRODUCTS.items():
            name = rule.name
            name += f", {dtype} roots" * (dtype != "float32")
            name += f", {products} products" * (products != "float32")
            chosen.append(
                rule._replace(name=name, root_dtype=dtype, precision=precision)
            )
    return chosen


def main() -> None:
    """Runs what the JSON lacks."""
    rules = [*offered(PAPER), *offered(WHITENING)]
    exact = [rule for rule in rules if PRODUCTS[rule.precision] == "float32"]
    others = [rule for rule in rules if rule not in exact]
    stages = [(TILE, exact, None)]
    for dtype in DTYPES:
        own = [rule for rule in others if rule.root_dtype == dtype]
        stages.append((SMALL_TILE, own, None))
    stages.append((LARGE_TILE, exact, FIVE))
    for tile, chosen, only in stages:
        rows = completed(results.rows("descent"), tile, chosen, only)
        results.write("descent", rows, seeds=[0])


if __name__ == "__main__":
    main()
