"""Compares growing refresh intervals with constant ones at equal cost.

Question: at the same number of refreshes in a run, is growing_interval_schedule better
than a constant interval?
Method: the MLP of benchmarks.training.tiles on Fashion-MNIST, 600 steps, batch 256,
learning rate 0.1, momentum 0.9, no decay. For each constant interval k, the growing one
up to 4 k with as many refreshes at each stage as keep the total at or below the
constant one's. Mean training loss over all steps and over the last 50; three seeds.
Answer: docs/from_sgd.md, from benchmarks/results/interval_study.json.

    python -m benchmarks.training.intervals
"""

import numpy as np

from benchmarks.harness import results
from benchmarks.problems import fashion_mnist
from jorge_optax import growing_interval_schedule, jorge

SEEDS = results.sized((0, 1, 2), (0,))
STEPS = results.sized(600, 100)
CONSTANTS = results.sized((10, 20, 50), (10,))


def refreshes(interval) -> int:
    """Number of refreshes in a run."""
    return sum(step % int(interval(step)) == 0 for step in range(STEPS))


def growing_of_equal_cost(constant: int):
    """Returns the growing interval with at most the refreshes of a constant one."""
    best = None
    for per_stage in range(1, 100):
        candidate = growing_interval_schedule(4 * constant, refreshes=per_stage)
        if refreshes(candidate) > -(-STEPS // constant):
            break
        best = candidate
    return best


def main() -> None:
    """Runs everything and writes the JSON."""
    rows = []
    for constant in CONSTANTS:
        growing = growing_of_equal_cost(constant)
        variants = {
            f"every {constant}": (constant, -(-STEPS // constant)),
            f"growing to {4 * constant}": (growing, refreshes(growing)),
        }
        for name, (interval, count) in variants.items():
            curves = [
                fashion_mnist.train(jorge(0.1, update_interval=interval), seed, STEPS)
                for seed in SEEDS
            ]
            rows.append(
                {
                    "variant": name,
                    "constant": constant,
                    "refreshes": count,
                    "mean_loss": [float(np.mean(curve)) for curve in curves],
                    "final_loss": [float(np.mean(curve[-50:])) for curve in curves],
                }
            )
            print(rows[-1], flush=True)
    results.write("interval_study", rows, seeds=list(SEEDS), steps=STEPS)


if __name__ == "__main__":
    main()
