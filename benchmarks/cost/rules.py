"""Counts the operations and bytes of each rule.

Question: how many operations of matrix products does a step take on average with each
rule, and how large is the state?
Method: the update is traced for the parameters of four models at the default tile size,
and the operations of all its matrix products are counted, separately for a refresh; the
state is what init would allocate.
Answer: docs/whitening.md, from benchmarks/results/rule_cost.json.

    python -m benchmarks.cost.rules
"""

import jax
import optax

from benchmarks.cost.counts import matmul_flops, tree_bytes
from benchmarks.harness import results
from benchmarks.problems import shapes
from jorge_optax import BinomialSeries, Whitening, jorge, state_size

INTERVALS = (1, 2, 4, 10, 50)


def cost(params, rule) -> dict:
    """FLOPs of a plain step and of a refresh, and bytes of state."""
    optimizer = jorge(0.1, rule=rule)
    state = jax.eval_shape(optimizer.init, params)
    flops = matmul_flops(optimizer.update, params, state)
    return {**flops._asdict(), "state_bytes": state_size(params, rule=rule)}


def ratios(rule: dict, series: dict) -> dict[str, float]:
    """Returns the operations of a step over the paper's rule's, by interval."""
    return {
        str(k): (rule["plain"] + rule["refresh"] / k)
        / (series["plain"] + series["refresh"] / k)
        for k in INTERVALS
    }


def main() -> None:
    """Counts everything and writes the JSON."""
    rows = []
    for name, make in shapes.MODELS.items():
        params = make()
        series = cost(params, BinomialSeries())
        whitening = cost(params, Whitening())
        adamw = tree_bytes(jax.eval_shape(optax.adamw(1.0).init, params))
        rows.append(
            {
                "model": name,
                "series": series,
                "whitening": whitening,
                "whitening_ratios": ratios(whitening, series),
                "adamw_bytes": adamw,
            }
        )
        print(name, rows[-1]["whitening_ratios"])
    results.write("rule_cost", rows)


if __name__ == "__main__":
    main()
