"""Measures which multiple of the identity the statistics should start with.

Question: if the statistics start with the Gram matrix of the first gradient alone, are
the first steps worse? Does `start`, a share of the identity, help, and what does it
cost later?
Method: the composite rule on the MLP of benchmarks/problems, a refresh every 10 steps,
a constant learning rate (SGD's tuned one and twice that), 200 steps, five seeds. Mean
training loss of steps 30 to 60 and of the last 50.
Answer: docs/composite.md, from benchmarks/results/start_study.json.

    python -m benchmarks.training.start
"""

import itertools

import jax
import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.numerics.inverse_root import composite_rule
from benchmarks.problems import PROBLEMS
from jorge_optax import jorge

STARTS = results.sized((0.0, 0.1, 0.3, 1.0, 3.0), (0.3,))
RATES, SEEDS = (0.1, 0.2), results.sized((0, 1, 2, 3, 4), (0,))
STEPS, INTERVAL = 200, 10
EARLY = results.sized(slice(30, 60), slice(2))


def main() -> None:
    """Runs everything and writes the JSON."""
    problem = PROBLEMS["mlp"]()
    rows = []
    for start in STARTS:
        rule = composite_rule(start=start)

        @jax.jit
        def step(params, state, batch, rate, rule=rule):
            loss, grads = jax.value_and_grad(
                lambda params: problem.loss(params, (), batch)[0]
            )(params)
            optimizer = jorge(rate, update_interval=INTERVAL, rule=rule)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        for rate in RATES:
            early, late = [], []
            for seed in SEEDS:
                params, _ = problem.init(seed)
                state = jorge(rate, rule=rule).init(params)
                losses = []
                for batch in itertools.islice(problem.batches(seed), STEPS):
                    params, state, loss = step(params, state, batch, rate)
                    losses.append(float(loss))
                for found, part in ((early, losses[EARLY]), (late, losses[-50:])):
                    mean = float(np.mean(part))
                    # Ten classes: a loss of ln 10 is chance.
                    found.append(round(mean, 4) if mean < np.log(10) else None)
            row = {"start": start, "learning_rate": rate, "early": early, "late": late}
            rows.append(row)
            print(row, flush=True)
    results.write("start_study", rows, seeds=list(SEEDS), steps=STEPS)


if __name__ == "__main__":
    main()
