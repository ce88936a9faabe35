"""Measures seconds a step and bytes of state on the problems of training.comparison.

Question: how long does a step take with each optimizer on these problems, and how large
is its state there and on the workloads of the examples?
Method: one process and one core (harness/machine.py). In each round every optimizer
takes ten steps, of which one refreshes the roots (PSGD-Kron: all, as in its first 500
steps); medians of all rounds but the first. Bytes are those that init would allocate.
Answer: the summary of docs/results/training.md, from
benchmarks/results/problem_costs.json.

    python -m benchmarks.cost.problems
"""

import time
from typing import Any

import jax
from flax import nnx

from benchmarks.cost import counts, updates
from benchmarks.harness import machine, results
from benchmarks.problems import PROBLEMS
from benchmarks.problems.training import make_step
from benchmarks.training import comparison, workloads
from examples.shared import optimizers

INTERVAL = 10
OPTIMIZERS = results.sized(
    ("sgd", "adamw", "muon", "psgd", "shampoo@10", "paper@10", "whitening@10"),
    ("sgd", "paper@10"),
)
ROUNDS = results.sized(6, 2)
TIMED = results.sized(("mlp", "resnet", "autoencoder"), ("transformer",))


def measure(name: str) -> list[dict]:
    """Returns a row for each optimizer on one problem."""
    problem = PROBLEMS[name]()
    steps, live, seconds = {}, {}, {key: [] for key in OPTIMIZERS}
    rate = 0.0  # so that nothing diverges; the cost is the same
    batches = [batch for batch, _ in zip(problem.batches(0), range(10), strict=False)]
    rows = {}
    for key in OPTIMIZERS:

        def make(rate: Any, key: str = key) -> Any:
            return comparison.optimizer(key, rate, problem.steps, problem)

        params, model_state = problem.init(0)
        state = make(rate).init(params)
        steps[key], live[key] = make_step(problem, make), (params, model_state, state)
        rows[key] = {
            "problem": name,
            "optimizer": key,
            "state_bytes": counts.tree_bytes(state),
        }
    for turn in range(ROUNDS):
        for key in OPTIMIZERS:
            start = time.perf_counter()
            for batch in batches:
                live[key] = steps[key](*live[key], batch, rate)
            jax.block_until_ready(live[key])
            if turn:
                seconds[key].append((time.perf_counter() - start) / len(batches))
        print(name, "round", turn, flush=True)
    for key, row in rows.items():
        row["step_seconds"] = updates.spread(seconds[key])
    return list(rows.values())


def workload_bytes(name: str) -> list[dict]:
    """Returns the bytes of state of each optimizer on a workload of the examples."""
    config, make_task = workloads.WORKLOADS[name]
    task = make_task(config, seed=0)
    model = nnx.eval_shape(lambda: task.model(nnx.Rngs(0)))
    params = nnx.split(model, nnx.Param, ...)[1]
    rows = []
    names = (*workloads.NAMES, *workloads.SCHEDULES)
    for key in dict.fromkeys(map(optimizers.base_name, names)):
        built = optimizers.build(
            key, config, steps=100, steps_per_epoch=task.steps_per_epoch
        )
        state = jax.eval_shape(built.transformation.init, params)
        rows.append(
            {
                "problem": name,
                "optimizer": key,
                "state_bytes": counts.tree_bytes(state),
            }
        )
    return rows


def main() -> None:
    """Measures everything and writes the JSON."""
    rows = [row for name in TIMED for row in measure(name)]
    for name in results.sized(tuple(workloads.WORKLOADS), ("segmentation",)):
        rows += workload_bytes(name)
    results.write("problem_costs", rows, seeds=[0])


if __name__ == "__main__":
    machine.steady()
    main()
