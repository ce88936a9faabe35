"""Compiles and times the update alone, without forward and backward pass."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import results
from benchmarks.problems import shapes
from jorge_optax import jorge

MODELS = {
    name: shapes.MODELS[name]
    for name in results.sized(
        ("resnet50", "deeplabv3_resnet50", "maskrcnn_resnet50_fpn"), ("resnet18",)
    )
}


def optimizers() -> dict:
    """Returns the optimizers by name, each with weight decay."""
    return {
        "sgd": optax.chain(
            optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9)
        ),
        "adamw": optax.adamw(1e-3, weight_decay=1e-2),
        "jorge": jorge(0.1, 0.9, 1e-3),
    }


def update(optimizer, params, state, grads):
    """Returns new parameters and state."""
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def compile_timed(function, structs, donate):
    """Returns the compiled function and the seconds to lower and to compile it."""
    start = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=donate).lower(*structs)
    middle = time.perf_counter()
    compiled = lowered.compile()
    return compiled, middle - start, time.perf_counter() - middle


def start(optimizer, params):
    """Returns zero parameters and their initial state."""
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), params)
    return zeros, optimizer.init(zeros)


def random_gradients(params, seed=0):
    """Draws gradients, the same in each call."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda s: jnp.asarray(0.01 * rng.standard_normal(s.shape, s.dtype)), params
    )
