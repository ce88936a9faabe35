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
    return float(np.linalg.norm(np.asarray(array, np.float64).ravel()))


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


@pytest.mark.parametrize(
    ("magnitude", "direction"),
    [
        (optax.trace(0.9), optax.scale_by_adam()),
        (optax.scale_by_rms(), optax.scale_by_sign()),
        (optax.sgd(0.3), optax.chain(optax.clip(0.1), optax.scale(-2.0))),
    ],
    ids=["adam at sgd", "sign at rms", "chain at sgd"],
)
def test_length_of_one_and_direction_of_the_other(magnitude, direction):
    optimizer = graft(magnitude, direction)
    state, states = (
        optimizer.init(tree(0)),
        (magnitude.init(tree(0)), direction.init(tree(0))),
    )
    update = jax.jit(optimizer.update)
    for seed in (10, 20, 30):
        gradients = tree(seed)
        updates, state = update(gradients, state)
        lengths, first = magnitude.update(gradients, states[0])
        directions, second = direction.update(gradients, states[1])
        states = first, second
        close(updates, jax.tree.map(by_hand, lengths, directions))
        differs(close, updates, jax.tree.map(by_hand, directions, lengths))
        close(jax.tree.leaves(state), jax.tree.leaves(states))


def test_a_zero_direction_gives_zero_whatever_the_length():
    some = tree(0)
    zero = jax.tree.map(jnp.zeros_like, some)
    huge = jax.tree.map(lambda x: jnp.full_like(x, 3e38), some)
    for pair in ((some, zero), (huge, zero), (zero, some), (zero, zero)):
        chex.assert_trees_all_equal(at_length(*pair), zero)
    differs(chex.assert_trees_all_equal, at_length(some, some), zero)


def test_neither_huge_nor_tiny_entries_break_the_length():
    def check(updates, lengths, directions):
        for key, step in lengths.items():
            expected = by_hand(step, directions[key]) / length(step)
            close(np.asarray(updates[key], np.float64) / length(step), expected)

    for size, other in itertools.product(EXTREMES, repeat=2):
        lengths = jax.tree.map(lambda x, s=size: np.float32(s) * x, tree(0))
        directions = jax.tree.map(lambda x, s=other: np.float32(s) * x, tree(10))
        updates = at_length(lengths, directions)
        check(updates, lengths, directions)
        for factor in (1.001, -1.0):
            changed = jax.tree.map(lambda x, f=factor: f * x, updates)
            differs(check, changed, lengths, directions)
    # And of all sizes in one parameter.
    mixed = jnp.asarray(EXTREMES, jnp.float32)
    for direction in (mixed, mixed[::-1], jnp.ones(4), 1e-20 * jnp.ones(4)):
        np.testing.assert_allclose(length(at_length(mixed, direction)), 1e30, rtol=1e-5)


@pytest.mark.parametrize("entry", [1e-30, 1e30, 1e-20, 0.0])
def test_constants_known_to_the_compiler_are_grafted_alike(entry):
    """Such is the gradient of a parameter that the loss does not use: zero."""
    directions = jnp.asarray([entry, 2 * entry, 0.0])
    constant = optax.stateless(lambda updates, params: directions)
    updates = one_update(graft(optax.identity(), constant), jnp.ones(3))
    expected = by_hand(jnp.ones(3), directions) if entry else np.zeros(3)
    close(updates, expected)
    differs(close, updates, 1 - expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_is_kept_at_the_cost_of_its_own_rounding(dtype):
    directions, lengths = tree(0, dtype=jnp.dtype(dtype)), tree(10)
    updates = at_length(lengths, directions)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, directions)
    rounding = 2 * float(jnp.finfo(dtype).eps)
    for key, update in updates.items():
        np.testing.assert_allclose(length(update), length(lengths[key]), rtol=rounding)
        assert abs(length(update) / length(directions[key]) - 1) > rounding


def test_identity_grafted_on_identity_is_the_identity():
    for gradients in (tree(0), {"w": jnp.array([1.0, 1.0j])}):
        updates = one_update(graft(optax.identity(), optax.identity()), gradients)
        close(updates, gradients)
        differs(close, updates, jax.tree.map(lambda x: 1j * x, gradients))


def scale_by_argument(name: str, seen: list[Any]) -> Any:
    """Multiplies by the extra argument of this name, and notes all of them."""

    def update(updates, state, params=None, **extra_args):
        del params
        seen.append(extra_args)
        return optax.tree.scale(extra_args[name], updates), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


def test_extra_arguments_go_to_both():
    gradients, seen = normal(0, (3, 2)), []
    first, second = (scale_by_argument(name, seen) for name in ("loss", "sign"))
    updates = one_update(graft(first, second), gradients, loss=3.0, sign=-0.5)
    assert seen == 2 * [{"loss": 3.0, "sign": -0.5}]
    close(updates, -3 * gradients)
    differs(close, updates, 3 * gradients)
    plain = graft(optax.identity(), second)
    close(one_update(plain, gradients, sign=-2.0, loss=3.0), -gradients)
