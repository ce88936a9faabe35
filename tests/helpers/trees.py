"""Arrays and trees to test with, training on them, and how they are compared."""

import math
import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

# Options of jax.jit: quick to compile rather than quick to run.
QUICK = {"xla_backend_optimization_level": 0}
# Shapes of the leaves of `tree`.
TREE = {"matrix": (6, 4), "kernel": (2, 2, 3, 5), "bias": (5,), "scale": ()}


def structs(**shapes: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    """Parameters that take no memory."""
    return {key: jax.ShapeDtypeStruct(s, "float32") for key, s in shapes.items()}


def counted(shape: tuple[int, ...], start: int = 0) -> jax.Array:
    """An array of which no two entries are equal (exact in float32 up to 2**24)."""
    count = math.prod(shape)
    assert start + count <= 2**24
    return jnp.asarray(np.arange(start, start + count, dtype=np.float32).reshape(shape))


def normal(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> jax.Array:
    entries = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(entries.astype(dtype))


def arrays(**shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    return {key: normal(i, shape) for i, (key, shape) in enumerate(shapes.items())}


def tree(seed: int, *leading: int, dtype: Any = np.float32) -> dict[str, jax.Array]:
    return {
        key: normal(seed + i, (*leading, *shape), dtype)
        for i, (key, shape) in enumerate(TREE.items())
    }


def saying(*parts: str) -> str:
    """A pattern of the parts, in this order, each taken literally."""
    return "(?s)" + ".*".join(re.escape(part) for part in parts)


def differs(assertion: Any, *trees: Any) -> None:
    """The negative control: the assertion does fail on what is not equal."""
    with pytest.raises(AssertionError):
        assertion(*trees)


def equal(actual: Any, expected: Any) -> None:
    """Equality of every entry, shape and dtype; quick to fail on large arrays."""
    chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(x, y)


def close(actual: Any, expected: Any) -> None:
    chex.assert_trees_all_close(actual, expected, rtol=2e-5, atol=1e-6)


def trainer(optimizer: Any) -> Any:
    """Training from params by gradients of all steps; returns all updates."""

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), updates

    def train(params, gradients):
        return jax.lax.scan(step, (params, optimizer.init(params)), gradients)[1]

    return jax.jit(train, compiler_options=QUICK)


def one_update(optimizer: Any, gradients: Any, **extra_args: Any) -> Any:
    """The first update, from parameters that are the gradients."""

    def update(gradients):
        state = optimizer.init(gradients)
        return optimizer.update(gradients, state, gradients, **extra_args)[0]

    return jax.jit(update, compiler_options=QUICK)(gradients)
