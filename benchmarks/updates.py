"""The update alone, without forward or backward pass: what several studies compile."""

import time

import jax
import numpy as np
import optax

from benchmarks import results, shapes
from jorge_optax import jorge

MODELS = results.sized(
    {
        "resnet50": lambda: shapes.resnet(50),
        "deeplabv3_resnet50": shapes.deeplabv3_resnet50,
    },
    {"resnet18": lambda: shapes.resnet(18)},
)


def optimizers() -> dict:
    """By name, each with weight decay."""
    return {
        "sgd": optax.chain(
            optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9)
        ),
        "adamw": optax.adamw(1e-3, weight_decay=1e-2),
        "jorge": jorge(0.1, 0.9, 1e-3),
    }


def compile_update(optimizer, params):
    """Lowered and compiled update of the parameters, and how long that took."""

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(optimizer.init, params)
    start = time.perf_counter()
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params)
    middle = time.perf_counter()
    compiled = lowered.compile()
    end = time.perf_counter()
    return lowered, compiled, middle - start, end - middle


def spread(values) -> dict:
    """Median, smallest and largest."""
    return {
        "median": float(np.median(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
    }
