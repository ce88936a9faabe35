"""The transformer on bytes of the Python standard library's sources."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import results
from benchmarks.problems import language_model
from benchmarks.problems.problem import Problem
from examples.language_model.input_pipeline import text

STEPS, BATCH = results.sized(300, 3), 16


def problem() -> Problem:
    """Two blocks of width 128; cross-entropy of the next byte on 64 held-out pieces."""
    validation, rng = text()[1], np.random.default_rng(1234)
    held_out = jnp.asarray(language_model.batch(validation, rng, 64))
    return Problem(
        name="transformer",
        steps=STEPS,
        init=lambda seed: (language_model.init(seed), ()),
        loss=lambda params, state, batch: (language_model.loss(params, batch), state),
        batches=_batches,
        evaluate=lambda params, state: _loss(params, held_out),
        metric="validation loss",
        larger_is_better=False,
        central_rate=0.2,
        adamw_leaves=("embedding", "position", "head"),
    )


_loss = jax.jit(language_model.loss)


def _batches(seed: int):
    training = text()[0]
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        yield language_model.batch(training, rng, BATCH)
