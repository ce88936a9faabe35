"""graft: the length of one step, the direction of another."""

import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jorge_optax import graft
from tests.helpers.trees import close, differs, normal, one_update, tree

EXTREMES = (1e-30, 1e30, 1e18, 1e-20)


def length(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, np.complex128).ravel()))


def by_hand(magnitude: Any, direction: Any) -> np.ndarray:
    direction = np.asarray(direction, np.float64)
    return length(magnitude) / length(direction) * direction


@jax.jit
def at_length(magnitudes: Any, directions: Any) -> Any:
    """By graft, and with neither of the two known to the compiler."""
    first, second = (
        optax.stateless(lambda updates, params, own=own: own)
        for own in (magnitudes, directions)
    )
    optimizer = graft(first, second)
    return optimizer.update(directions, optimizer.init(directions))[0]


PAIRS = {
    "adam at sgd": (optax.trace(0.9), optax.scale_by_adam()),
    "chain at sgd": (optax.sgd(0.3), optax.chain(optax.clip(0.1), optax.scale(-2.0))),
    "identity": (optax.trace(0.9), optax.identity()),
}


@pytest.mark.parametrize("name", PAIRS)
def test_length_of_one_and_direction_of_the_other(name):
    magnitude, direction = PAIRS[name]
    optimizer = graft(magnitude, direction)
    state, first, second = (tx.init(tree(0)) for tx in (optimizer, *PAIRS[name]))
    update = jax.jit(optimizer.update)
    for seed in (10, 20, 30):
        gradients = tree(seed)
        updates, state = update(gradients, state)
        lengths, first = magnitude.update(gradients, first)
        directions, second = direction.update(gradients, second)
        close(updates, jax.tree.map(by_hand, lengths, directions))
        close(jax.tree.leaves(state), jax.tree.leaves((first, second)))
    differs(close, updates, jax.tree.map(by_hand, directions, lengths))


def test_a_zero_direction_gives_zero_whatever_the_length():
    some = tree(0)
    zero = jax.tree.map(jnp.zeros_like, some)
    huge = jax.tree.map(lambda x: jnp.full_like(x, 3e38), some)
    for pair in ((some, zero), (huge, zero), (zero, some), (zero, zero)):
        chex.assert_trees_all_equal(at_length(*pair), zero)
    constant = graft(optax.identity(), optax.set_to_zero())  # known to the compiler
    chex.assert_trees_all_equal(one_update(constant, some), zero)
    differs(chex.assert_trees_all_equal, at_length(some, some), zero)


def test_neither_huge_nor_tiny_entries_break_the_length():
    for size, other in itertools.product(EXTREMES, repeat=2):
        lengths = jax.tree.map(lambda x, s=size: np.float32(s) * x, tree(0))
        directions = jax.tree.map(lambda x, s=other: np.float32(s) * x, tree(10))
        updates = at_length(lengths, directions)
        for key, step in lengths.items():
            found = np.asarray(updates[key], np.float64) / length(step)
            expected = by_hand(step, directions[key]) / length(step)
            close(found, expected)
            differs(close, 1.001 * found, expected)
    # And of all sizes in one parameter.
    mixed = jnp.asarray(EXTREMES, jnp.float32)
    for direction in (mixed[::-1], jnp.ones(4), 1e-20 * jnp.ones(4)):
        np.testing.assert_allclose(length(at_length(mixed, direction)), 1e30, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_dtype_is_kept_at_the_cost_of_its_own_rounding(dtype):
    factor = 1j if dtype == "complex64" else 1
    directions, lengths = tree(0), tree(10)
    directions = jax.tree.map(lambda x: (factor * x).astype(dtype), directions)
    updates = at_length(lengths, directions)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, directions)
    rounding = max(2 * float(jnp.finfo(dtype).eps), 1e-6)
    for key, update in updates.items():
        np.testing.assert_allclose(length(update), length(lengths[key]), rtol=rounding)
        assert (np.sign(update) == np.sign(directions[key])).all()


def test_extra_arguments_go_to_both():
    def scale_by_argument(name):
        def update(updates, state, params=None, **extra_args):
            del params
            assert extra_args.keys() == {"loss", "sign"}
            return optax.tree.scale(extra_args[name], updates), state

        return optax.GradientTransformationExtraArgs(lambda params: (), update)

    combined = graft(scale_by_argument("loss"), scale_by_argument("sign"))
    gradients = normal(0, (3, 2))
    close(one_update(combined, gradients, loss=3.0, sign=-0.5), -3 * gradients)
