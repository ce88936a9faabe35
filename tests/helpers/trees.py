"""Arrays and trees to test with, training on them, and how they are compared."""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import Tiling
from jorge_optax._stacks import plan_tree

# Shapes of the leaves of `tree`.
TREE = {"matrix": (6, 4), "kernel": (2, 2, 3, 5), "bias": (5,), "scale": ()}
# Shapes of leaves of all kinds; the embedding is too large to be laid beside others.
EMBEDDING = (32000, 512)
SHAPES = (
    (),
    (1,),
    (5,),
    (1, 5, 1),
    (1, 17),
    (17, 1),
    (2, 2),
    (13, 31),
    (2, 1, 1, 2),
    (3, 3, 64, 128),
    (7, 7, 3, 64),
    (3, 3, 1, 256),
    (512, 8, 64),
    (12, 96, 40),
    EMBEDDING,
)
WITHOUT_ROOTS = ((), (1,), (5,), (1, 5, 1), (1, 17), (17, 1))


def paths_of(tree: Any) -> list[str]:
    return [leaf.path for leaf in plan_tree(tree, Tiling()).leaves]


def counted(shape: tuple[int, ...], start: int = 0) -> jax.Array:
    """An array of which no two entries are equal (exact in float32 up to 2**24)."""
    count = math.prod(shape)
    assert start + count <= 2**24
    return jnp.asarray(np.arange(start, start + count, dtype=np.float32).reshape(shape))


def normal(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> jax.Array:
    entries = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(entries.astype(dtype))


def tree(seed: int, *leading: int, dtype: Any = np.float32) -> dict[str, jax.Array]:
    return {
        key: normal(seed + i, (*leading, *shape), dtype)
        for i, (key, shape) in enumerate(TREE.items())
    }


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

    # Quick to compile rather than quick to run.
    return jax.jit(train, compiler_options={"xla_backend_optimization_level": 0})
