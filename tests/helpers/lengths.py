"""Lengths of updates, and that they are SGD's."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jorge_optax import jorge

DTYPES = ["float32", "bfloat16"]


def norm64(tree):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))


def assert_as_long_as_sgd(grads, dtype, optimizer=None, tolerance=None, **options):
    """Each update is as long as SGD's, not merely finite."""
    optimizer = optimizer or jorge(1.0, update_interval=1, **options)
    sgd = optax.sgd(1.0, 0.9)
    params = jnp.zeros(grads[0].shape, dtype)
    state, sgd_state = optimizer.init(params), sgd.init(params.astype(jnp.float32))
    update, sgd_update = jax.jit(optimizer.update), jax.jit(sgd.update)
    for gradient in grads:
        gradient = jnp.asarray(gradient, dtype)
        updates, state = update(gradient, state, params)
        expected, sgd_state = sgd_update(gradient.astype(jnp.float32), sgd_state)
        chex.assert_tree_all_finite((updates, state))
        assert norm64(expected) > 0
        tolerance = tolerance or (1e-5 if dtype == "float32" else 1e-2)
        assert abs(norm64(updates) / norm64(expected) - 1) < tolerance
