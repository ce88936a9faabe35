"""Separates the effects of the direction of a step and of its length.

Question: the length of a step is given by the shape of the matrix for Muon, and by
grafting from SGD for Jorge and Shampoo. How much of Muon's advantage is the direction
of its steps, and how much their length?
Method: the problems of benchmarks/problems, with a cosine schedule and momentum 0.9.
The matrices that Muon takes get the direction of one optimizer and the length of
another, by ``graft``; all other leaves get Adam at the rate at which AdamW did best on
that problem, in all variants. Jorge (whitening) and exact Shampoo refresh every 10
steps. Lengths: SGD's with momentum; Adam's; by shape, as Muon's, sqrt(min(m, n) max(1,
n/m)) for m inputs and n outputs; the direction's own. Each pair is given five learning
rates, a factor 2 to 2.5 apart (where the best is at an edge, more beyond it), on the
tuning seed; the best runs on three seeds. Rows "jorge" are the whole optimizer as users
would write it, ``jorge(grafting=...)``, with no leaf left to Adam.
Answer: docs/results/rules.md, from benchmarks/results/length_PROBLEM.json.

    python -m benchmarks.training.lengths PROBLEM
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from benchmarks.harness import rates, results
from benchmarks.problems import PROBLEMS, Problem
from benchmarks.problems.training import trainer
from benchmarks.training.comparison import BESIDE, SEEDS, TUNING_SEED, Study
from examples.shared.shampoo import ShampooRule
from jorge_optax import (
    Tiling,
    Whitening,
    graft,
    jorge,
    lengths,
    scale_by_jorge,
)

MOMENTUM, B2, INTERVAL = 0.9, 0.95, 10
# Where the search for a rate begins; None: at the problem's rate for SGD.
LENGTHS: dict[str, float | None] = {
    "sgd": None,
    "adam": 2e-3,
    "shape": 2e-2,
    "own": 2e-2,
}


def by_shape() -> optax.GradientTransformation:
    """Steps whose length depends on the shape of the matrix alone, as Muon's do."""

    def update(m: int, n: int, gradient: jax.Array) -> jax.Array:
        norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
        length = math.sqrt(min(m, n) * max(1, n / m))
        return gradient * (length / jnp.maximum(norm, 1e-30))

    return _per_matrix(update)


def _per_matrix(function: Callable[..., jax.Array]) -> optax.GradientTransformation:
    """Applies a function of inputs m, outputs n and the array."""

    def update(x: jax.Array, params: Any) -> jax.Array:
        del params
        n = x.shape[-1] if x.ndim else 1
        return function(x.size // n, n, x)

    return optax.stateless_with_tree_map(update)


def direction(name: str, problem: Problem) -> optax.GradientTransformation:
    """A direction with its momentum."""
    if name == "muon":
        muon = contrib.scale_by_muon(
            beta=MOMENTUM, weight_dimension_numbers=problem.muon_dimension_numbers
        )
        return optax.chain(muon, _per_matrix(lambda m, n, x: x * max(1, n / m) ** 0.5))
    rule = Whitening() if name == "whitening" else ShampooRule()
    return scale_by_jorge(rule=rule, momentum=MOMENTUM, update_interval=INTERVAL)


def variant(
    name: str, rate: Any, adam_rate: float, problem: Problem
) -> optax.GradientTransformation:
    """The optimizer of a name "direction, length" or "jorge, length"."""
    schedule = optax.cosine_decay_schedule(rate, problem.steps)
    first, length = name.split(", ")
    if first == "jorge":
        return jorge(
            schedule,
            MOMENTUM,
            update_interval=INTERVAL,
            rule=Whitening(),
            grafting={"sgd": lengths.SGD(), "adam": lengths.Adam(B2)}[length],
        )
    step = direction(first, problem)
    grafted = {
        "sgd": optax.trace(MOMENTUM),
        "adam": optax.scale_by_adam(MOMENTUM, B2),
        "shape": by_shape(),
    }
    if length != "own":
        step = graft(grafted[length], step, tiling=Tiling())
    others = optax.cosine_decay_schedule(adam_rate, problem.steps)

    def labels(params):
        numbers = problem.muon_dimension_numbers(params)
        leaves = jax.tree.leaves(
            numbers, is_leaf=lambda x: x is None or isinstance(x, tuple)
        )
        tree = jax.tree.structure(params)
        return tree.unflatten("matrix" if leaf else "other" for leaf in leaves)

    return optax.partition(
        {
            "matrix": optax.chain(step, optax.scale_by_learning_rate(schedule)),
            "other": optax.adam(others, MOMENTUM, B2),
        },
        labels,
    )


def names() -> list[str]:
    """Returns all variants."""
    grafted = [f"{d}, {length}" for d in ("whitening", "muon") for length in LENGTHS]
    shampoo = ["shampoo, sgd", "shampoo, shape"]
    return [*grafted, *shampoo, "jorge, sgd", "jorge, adam"]


def main() -> None:
    """Tunes and runs all that the JSON lacks."""
    problem = PROBLEMS[sys.argv[1]]()
    file = f"length_{problem.name}"
    study = Study(problem)
    adam_rate = study.best("adamw")

    def rows(name: str, stage: str) -> list[dict[str, Any]]:
        key = {"variant": name, "stage": stage}
        return [row for row in results.rows(file) if key.items() <= row.items()]

    def run(train, name: str, stage: str, rate: float, seed: int) -> None:
        key = dict(variant=name, stage=stage, learning_rate=rate, seed=seed)
        if any(key.items() <= row.items() for row in results.rows(file)):
            return
        curve = train(rate, seed)
        with results.lock():
            all_rows = [
                *results.rows(file),
                {**key, "final": curve[-1], "curve": curve},
            ]
            results.write(file, all_rows, metric=problem.metric, adam_rate=adam_rate)
        print(problem.name, *key.values(), curve[-1], flush=True)

    def best(name: str) -> float:
        return min(rows(name, "tune"), key=study.badness)["learning_rate"]

    for name in sys.argv[2:] or names():
        make = functools.partial(variant, name, adam_rate=adam_rate, problem=problem)
        train = trainer(problem, lambda rate, make=make: make(rate=rate))
        middle = LENGTHS[name.split(", ")[1]] or problem.central_rate
        rates.search(
            {name: rates.around(middle, BESIDE)},
            lambda name, rate, train=train: run(train, name, "tune", rate, TUNING_SEED),
            best,
            widen=not results.SMOKE,
        )
        for seed in SEEDS[:3]:
            run(train, name, "final", best(name), seed)
        finals = [row["final"] for row in rows(name, "final")]
        good = [value for value in finals if value is not None]
        print(f"{name:<22} {best(name):g} {np.mean(good):.4f}", finals, flush=True)


if __name__ == "__main__":
    main()
