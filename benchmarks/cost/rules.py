"""Counts the operations and bytes of the composite rule and of the paper's.

Question: how many operations of matrix products does a step take on average with either
rule, and how large is the state?
Method: the update is traced for the parameters of four models at the default tile size,
and the operations of all its matrix products are counted, separately for a refresh; the
state is what init would allocate.
Answer: docs/composite.md, from benchmarks/results/rule_cost.json.

    python -m benchmarks.cost.rules
"""

import jax

from benchmarks.cost.counts import matmul_flops
from benchmarks.harness import results
from benchmarks.problems import shapes
from jorge_optax import BinomialSeries, TrackedStatistics, jorge, state_size

INTERVALS = (1, 2, 4, 10, 50)


def cost(params, rule) -> dict:
    """FLOPs of a plain step and of a refresh, and bytes of state."""
    optimizer = jorge(0.1, rule=rule)
    state = jax.eval_shape(optimizer.init, params)
    flops = matmul_flops(optimizer.update, params, state)
    return {**flops._asdict(), "state_bytes": state_size(params, rule=rule)}


def main() -> None:
    """Counts everything and writes the JSON."""
    rows = []
    for name, make in shapes.MODELS.items():
        params = make()
        series = cost(params, BinomialSeries())
        composite = cost(params, TrackedStatistics())
        ratios = {
            str(k): (composite["plain"] + composite["refresh"] / k)
            / (series["plain"] + series["refresh"] / k)
            for k in INTERVALS
        }
        rows.append(
            {"model": name, "series": series, "composite": composite, "ratios": ratios}
        )
        print(name, {k: round(v, 3) for k, v in ratios.items()})
    results.write("rule_cost", rows)


if __name__ == "__main__":
    main()
