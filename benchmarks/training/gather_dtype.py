"""Measures what it costs to send the steps of tiles in bfloat16.

Question: does Spread(gather_dtype="bfloat16") cost quality?
Method: on one device, the steps of all matrices are rounded to bfloat16 before they are
multiplied by the learning rate, which is what the devices would exchange. The MLP of
training.tiles on Fashion-MNIST, 200 steps at 0.1, by the paper's rule, mean training
loss of the last 50 steps; the transformer on bytes, 100 steps, Whitening by shape,
cosine from 0.04, validation loss at the end. Three seeds, paired.
Answer: docs/distributed.md, from benchmarks/results/gather_dtype.json.

    python -m benchmarks.training.gather_dtype

After an interruption, the next call runs what the JSON lacks.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.problems import fashion_mnist, language_model
from jorge_optax import Whitening, default_view, jorge, lengths

NAME = "gather_dtype"
SEEDS = results.sized((0, 1, 2), (0,))
MLP_STEPS, LM_STEPS = results.sized((200, 100), (10, 20))
CASES = {
    "MLP, the paper's rule": {},
    "transformer, `Whitening` by shape": {
        "rule": Whitening(),
        "grafting": lengths.Shape(),
    },
}


def round_matrices(dtype: str) -> optax.GradientTransformation:
    """Rounds the steps of parameters with roots, in value."""

    def round_leaf(step: jax.Array) -> jax.Array:
        # Not by two casts, which XLA may cancel.
        bits = jnp.finfo(dtype)
        rounded = jax.lax.reduce_precision(step, bits.nexp, bits.nmant)
        return step if default_view(step.shape) is None else rounded

    def update(updates, state, params=None):
        del params
        return jax.tree.map(round_leaf, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def train(case: str, dtype: str, seed: int) -> float:
    """Returns the last loss."""
    step = optax.chain(jorge(1.0, **CASES[case]), round_matrices(dtype))
    if case.startswith("MLP"):
        optimizer = optax.chain(step, optax.scale(0.1))
        curve = fashion_mnist.train(optimizer, seed, MLP_STEPS)
        return float(np.mean(curve[-50:]))
    rate = optax.cosine_decay_schedule(0.04, LM_STEPS)
    optimizer = optax.chain(step, optax.scale_by_schedule(rate))
    return language_model.train(optimizer, seed, LM_STEPS)[-1][1]


def main() -> None:
    """Runs what the JSON lacks."""
    rows = results.rows(NAME)
    done = {(row["case"], row["seed"]) for row in rows}
    for case in CASES:
        for seed in SEEDS:
            if (case, seed) not in done:
                losses = {
                    dtype: train(case, dtype, seed) for dtype in ("float32", "bfloat16")
                }
                rows.append({"case": case, "seed": seed, "loss": losses})
                print(rows[-1], flush=True)
                results.write(NAME, rows, mlp_steps=MLP_STEPS, lm_steps=LM_STEPS)


if __name__ == "__main__":
    main()
