"""Chooses the default learning rate of steps by shape.

Question: which one learning rate suits all problems?
Method: steps by shape at an interval of 10, as `from_scratch` has them, at rates on and
between the rungs that training.comparison and training.adamw tune with. Seeds 100 to
102, on the ResNet, whose seeds differ most, 100 to 119 for the best rates, and on the
transformer 100 to 109 for the default rate and for the tuned one: no comparison of
optimizers reports them.
Answer: docs/step_length.md, from benchmarks/results/default_rate.json.

    python -m benchmarks.training.default_rate [PROBLEM ...]

Runs that the JSON holds are not repeated.
"""

import argparse
import functools
from collections.abc import Callable

from benchmarks.harness import results
from benchmarks.problems import PROBLEMS, language_model
from benchmarks.problems.training import trainer
from benchmarks.training import adamw, comparison

RATES = results.sized((0.02, 0.03, 0.04, 0.0425, 0.045, 0.05, 0.1), (0.04,))
SEEDS = {
    **dict.fromkeys(("mlp", "autoencoder", "lm"), (100, 101, 102)),
    "resnet": results.sized(tuple(range(100, 120)), (100,)),
}
# More seeds of the default rate and of the tuned one.
MORE = results.sized({("lm", rate): range(100, 110) for rate in (0.02, 0.0425)}, {})
FEWER = {0.02: 3, 0.1: 1, 0.03: 3}  # seeds that tell enough, by rate


@functools.cache
def train_on(name: str) -> Callable[[float, int], float | None]:
    """Returns a function of rate and seed that trains and returns the last metric."""
    if name == "lm":
        return _train_transformer
    problem = PROBLEMS[name]()

    def make(rate):
        return comparison.optimizer("by-shape@10", rate, problem.steps, problem)

    train = trainer(problem, make, evaluations=4)
    return lambda rate, seed: train(rate, seed)[-1]


def _train_transformer(rate: float, seed: int) -> float:
    optimizer = adamw.optimizer_of("jorge, by shape", rate, adamw.Study().best("adamw"))
    return language_model.train(optimizer, seed, adamw.STEPS)[-1][1]


def main() -> None:
    """Runs what the JSON lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problems", nargs="*", default=list(SEEDS))
    for name in parser.parse_args().problems:
        for rate in RATES:
            usual = SEEDS[name][: FEWER.get(rate)]
            for seed in MORE.get((name, rate), usual):
                key = dict(problem=name, learning_rate=rate, seed=seed)
                rows = results.rows("default_rate")
                if any(key.items() <= row.items() for row in rows):
                    continue
                row = {**key, "final": train_on(name)(rate, seed)}
                print(*row.values(), flush=True)
                with results.lock():
                    results.write("default_rate", [*results.rows("default_rate"), row])


if __name__ == "__main__":
    main()
